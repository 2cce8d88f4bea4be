// Tables of the rotations of some tokens' q and k: one for each kind of layer that a model has, not one for each layer.
#pragma once

#include "core/kernels/rope.h"
#include "core/rank/rank.h"
#include "layers/io/config.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail {

/// How a layer rotates q and k: tables [S, r] with a row for each token. Without dims: nothing is rotated.
struct Rotations {
  ConstTensor queries;
  ConstTensor keys;  ///< the same table, unless the scale of queries grows with the position
  kernels::RotaryPairs pairs = kernels::RotaryPairs::halves;
};

/// Owns the tables of a number of tokens, in the type of sums of `dtype`.
class RotaryTables {
 public:
  /// Allocates the tables that the model's layers need; none if no layer rotates. `longest`: tokens of the longest sequence of
  /// the run, by which scalings choose. Borrows both, which must outlive it.
  RotaryTables(Rank& rank, const ModelConfig& config, DType dtype, std::size_t tokens, std::size_t longest);

  /// Fills the tables for tokens at these positions, one for each row.
  void fill(std::span<const std::int64_t> positions) const;
  /// Returns how a layer of the model rotates.
  Rotations of(const LayerSpec& layer) const;

 private:
  /// Tables that layers of one kind share.
  struct Kind {
    bool local;        // LayerSpec::local_rotary
    std::size_t dims;  // r
    std::vector<double> frequencies;
    RopeScaling scaling;
    OwnedTensor keys;
    OwnedTensor queries;  // if they aren't the same
  };

  const Kind* kind_of(const LayerSpec& layer) const;

  Rank& rank_;
  const ModelConfig& config_;
  kernels::RotaryPairs pairs_;
  std::vector<Kind> kinds_;  // of layers whose rotation is the model's; then of those that are `local_rotary`
};

}  // namespace tsprun::detail
