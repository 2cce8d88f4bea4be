// Whole steps of whole models on any mesh: the schemes of traffic.h put together with the vocabulary and data parallelism, and
// what each rank holds and saves.
//
// The vocabulary is cut over the ranks with tokens of their own; under plain tp over the tensor axis, with copies on the sequence
// axis whose gradients are all-reduced.
#pragma once

#include "layers/model/mesh.h"
#include "layers/sp/sequence_attention.h"
#include "layers/theory/traffic.h"

#include <cstdint>
#include <optional>
#include <span>

namespace tsp::theory {

/// `setting`.batch: all sequences, over the data axis, which divides them.
struct MeshSetting {
  Setting setting;
  MeshShape shape;
  SequenceExchange exchange = SequenceExchange::gather;

  /// Of one rank of the data axis.
  Setting replica() const;
  bool cuts_vocabulary_over_tensor() const { return shape.tensor > 1 && !shape.slices_tokens(); }
};

/// Tokens whose embedding row lives on another rank. `ids` [B, S] in natural order.
std::uint64_t remote_rows(const MeshSetting& of, std::span<const std::int32_t> ids);
/// What all ranks receive in one block, without dp; none where it isn't known (ulysses in a tensor rank's part whose K/V heads
/// are read by unequal numbers of its query heads).
std::optional<Traffic> mesh_block(const MeshSetting& of);
/// What all ranks receive in a training step, `other` left out: it may use any algorithm.
std::optional<Traffic> mesh_step(const MeshSetting& of, std::span<const std::int32_t> ids);

/// A rank's place on the tensor and the sequence axis.
struct MeshPlace {
  int tensor = 0;
  int sequence = 0;
};
MeshPlace place_of(const MeshShape& shape, int rank);

/// Elements that a rank holds of one block's matrices, and of all parameters.
std::uint64_t block_elements(const MeshSetting& of, MeshPlace place);
std::uint64_t all_elements(const MeshSetting& of, MeshPlace place);
/// Bytes that a rank saves in one layer, and in a whole step (`id_bytes`: of ids and labels for one token).
std::uint64_t saved_bytes(const MeshSetting& of, MeshPlace place);
std::uint64_t activation_bytes(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes);
/// Tokens of a rank's residual.
std::uint64_t held_tokens(const MeshSetting& of, MeshPlace place);

}  // namespace tsp::theory
