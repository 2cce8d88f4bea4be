// Dropout from a counter-based generator: whether an element is kept depends only on a key, the number of its row and its column.
// So every rank, every recomputation and the backward pass draw the same mask, whichever rows they hold, and no mask is stored.
//
// The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014), whose sequence
// can be entered at any place.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::detail::kernels {

/// Returns number `n`, counted from 0, of the SplitMix64 sequence with seed `seed`.
constexpr std::uint64_t split_mix(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

/// Probability and key of one use of dropout. Uses with different keys draw different masks.
struct Dropout {
  double probability = 0;  ///< that an element is dropped, in [0, 1)
  std::uint64_t key = 0;   ///< seed of the draws
};

/// Applies dropout to each row: with u the upper 53 bits of split_mix(split_mix(of.key, rows[t]), column) as a fraction of 2⁵³
/// and p = of.probability, y = x/(1 − p) where u ≥ p, and y = 0 elsewhere.
///
/// x and y are [T, h] with dense rows; bf16 and f32 may be mixed; `y` may be the same memory as `x`. `rows` [T] holds the number
/// of each row. The backward pass is the same function applied to gradients. Throws std::invalid_argument if p isn't in [0, 1).
void dropout(const Compute& on, const Tensor& y, const ConstTensor& x, std::span<const std::uint64_t> rows, const Dropout& of);

}  // namespace tsprun::detail::kernels
