// A model on a mesh, rank by rank: which parameters each rank holds, what it saves for the backward pass, how far it must fetch
// rows of the embedding. Whatever plans, compares or audits layouts counts here and in flows.h.
//
// Weights: tsp cuts heads and rows over its ranks, tp over its own with copies of the K/V heads that several ranks read, tp×tsp
// a tensor rank's part again; zero3 cuts every sublayer's rows evenly; dp and sp hold copies. The vocabulary is cut over the
// ranks with tokens of their own; under plain tp over the tensor axis, with copies on the sequence axis. Saved activations: of a
// rank's tokens; Ulysses keeps q, k, v and log-sum-exps of some heads over whole sequences.
#pragma once

#include "core/memory/category.h"
#include "layers/model/mesh.h"
#include "layers/slice.h"
#include "layers/sp/sequence_attention.h"
#include "layers/theory/spread.h"
#include "layers/theory/traffic.h"

#include <cstdint>
#include <span>

namespace tsprun::theory {

/// `setting`.batch: all sequences, over the data axis, which divides them.
struct MeshSetting {
  Setting setting;
  MeshShape shape;
  SequenceExchange exchange = SequenceExchange::gather;

  /// The same as `spread` says. Only for spreads that are possible.
  static MeshSetting of(const Setting& setting, const Spread& spread);
  /// As plans write it, without axes of degree 1.
  Spread spread() const;

  /// Of one rank of the data axis.
  Setting replica() const;
  bool cuts_vocabulary_over_tensor() const { return shape.tensor > 1 && !shape.slices_tokens(); }
  bool exchanges_heads() const {
    return shape.scheme == Scheme::dense && shape.sequence > 1 && exchange == SequenceExchange::ulysses;
  }
};

/// A rank's place on the tensor and the sequence axis.
struct MeshPlace {
  int tensor = 0;
  int sequence = 0;
};
MeshPlace place_of(const MeshShape& shape, int rank);

/// Elements.
struct Held {
  std::uint64_t attention = 0;   ///< of all layers
  std::uint64_t mlp = 0;         ///< of all layers
  std::uint64_t vocabulary = 0;  ///< embedding, and head unless tied
  std::uint64_t norms = 0;       ///< all gains, biases, learned positions
  std::uint64_t total() const { return attention + mlp + vocabulary + norms; }
};
Held held(const MeshSetting& of, MeshPlace place);

/// Optimizer states a parameter: two, and the master copy where parameters have fewer bytes than sums.
std::uint64_t optimizer_states(const ElementBytes& bytes);

/// K/V heads that part `part` of a slice's query heads reads, cut evenly into `parts`.
std::size_t kv_heads_read(const ModelConfig& model, const BlockSlice& slice, int part, int parts);

/// Tokens of a rank's residual.
std::uint64_t held_tokens(const MeshSetting& of, MeshPlace place);
/// Bytes that a rank saves in one layer, and in a whole step (`id_bytes`: of ids and labels for one token).
std::uint64_t saved_bytes(const MeshSetting& of, MeshPlace place);
std::uint64_t activation_bytes(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes);

/// What a rank holds for certain in a training step, exactly: parameters, gradients, optimizer and saved activations, `total` of
/// them.
CategoryBytes certain(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes);
/// The rank that holds most; the first of several.
int fullest(const MeshSetting& of);

/// Tokens whose embedding row lives on another rank. `ids` [B, S] in natural order.
std::uint64_t remote_rows(const MeshSetting& of, std::span<const std::int32_t> ids);

}  // namespace tsprun::theory
