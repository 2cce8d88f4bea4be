// Choosing the next token from its logits. The same on every rank: the logits are, and random numbers come from a counter.
#pragma once

#include "core/tensor/tensor.h"
#include "layers/model/data.h"

#include <cstddef>
#include <cstdint>

namespace tsprun {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0: the likeliest token (greedy)
  std::size_t top_k = 0;     ///< only the k likeliest; 0: all
  double top_p = 1.0;        ///< only the likeliest that together have this probability; at least one
  std::uint64_t seed = 0;
};

/// Chooses token number `index` (from 0) of a text. `logits` [V] of f32 or f64; among equal logits the lowest id comes first. NaN
/// logits give Error(refused).
Token sample(const ConstTensor& logits, const SamplingOptions& options, std::uint64_t index);

}  // namespace tsprun
