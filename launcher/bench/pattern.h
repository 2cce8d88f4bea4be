// Test data whose every element is known: the input of a checked operation, and what its output must be.
//
// An element is made of a small integer drawn by a hash of (seed, rank, index): 14 bits for f32 and f64, 8 for bf16 and f16, so
// that each value is exact in its type, and sums over up to 1024 ranks are exact in f32 in any order. Values for products of
// such types are 1 and −1. So the expected result doesn't depend on how a reduction was done, but for averages and sums of
// halves that are rounded on every node (hierarchical ones); bf16 and f16 are rounded once, to nearest, ties to even. Integers
// are multiples of the drawn one that fill their type, and wrap around; bools are its last bit.
#pragma once

#include "tsprun/types.h"

#include <cstdint>
#include <functional>

namespace tsprun::detail::bench {

/// Function that is called now and then while a long buffer is processed, so that waiting peers don't take this rank for stalled.
using Tick = std::function<void()>;

/// Fills the buffer with the values of `rank` from index `first` on, as the input of this reduction.
void fill(Buffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick,
          Reduction reduction = Reduction::sum);

/// Returns the number of elements that differ from the values of `rank` from index `first` on.
std::uint64_t count_wrong(ConstBuffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick);

/// Returns the number of elements that differ from the reductions over ranks 0 … ranks−1 of their values from index `first` on.
std::uint64_t count_wrong_reductions(ConstBuffer buffer, std::uint32_t seed, int ranks, std::uint64_t first, const Tick& tick,
                                     Reduction reduction = Reduction::sum);

}  // namespace tsprun::detail::bench
