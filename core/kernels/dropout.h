// Dropout by counters: whether an element stays follows from a key, the number of its row and its column alone, so every rank,
// every recomputation and the backward pass draw the same, whichever rows they have.
//
// The numbers are those of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014), which
// can be reached at any place of its sequence.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::kernels {

/// Number `n` of SplitMix64's sequence that begins with `seed`.
constexpr std::uint64_t split_mix(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

/// What one use of dropout draws with.
struct Dropout {
  double probability = 0;  ///< of being dropped, in [0, 1)
  std::uint64_t key = 0;
};

/// y = x/(1 − p) where split_mix(split_mix(key, row), column)·2⁻⁶⁴, cut to 53 bits, is at least p; else 0. x, y [T, h], dense
/// rows, types that mix; `rows` [T]: the number of each row. `y` may be `x`. The backward pass is the same on gradients.
void dropout(const Compute& on, const Tensor& y, const ConstTensor& x, std::span<const std::uint64_t> rows, const Dropout& of);

}  // namespace tsprun::kernels
