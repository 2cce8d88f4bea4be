// Choosing the next token from its logits. All ranks choose the same one: they have the same logits, and random numbers are a
// function of a counter.
#pragma once

#include "core/tensor/tensor.h"
#include "layers/io/data.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// Options of sample().
struct SamplingOptions {
  double temperature = 1.0;  ///< 0: the likeliest token (greedy)
  std::size_t top_k = 0;     ///< choose among the k likeliest; 0: among all
  double top_p = 1.0;        ///< choose among the likeliest that together have this probability; at least one
  /// Divides the logits of tokens that the text has already, or multiplies those below 0 (CTRL, arXiv 1909.05858, section 4.1, as
  /// transformers has it). 1: nothing.
  double repetition_penalty = 1.0;
  std::uint64_t seed = 0;
};

/// Chooses token number `index` (from 0) of a text. `logits` [V] in f32 or f64; of equal logits the lowest id counts as the
/// likeliest. `before`: the text's tokens so far, all ids of the vocabulary, for the penalty. Throws Error(refused) for NaN
/// logits.
Token sample(const ConstTensor& logits, const SamplingOptions& options, std::uint64_t index, std::span<const Token> before = {});

}  // namespace tsprun::detail
