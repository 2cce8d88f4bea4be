// Test data whose every element is known: the input of a checked operation, and what its output must be.
//
// An element is a small integer drawn by a hash of (seed, rank, index). f32 and f64 draw 14 bits and bf16 draws 8, so that each
// value is exact in its type, and sums over up to 1024 ranks are exact in f32 in any order: the expected result doesn't depend on
// how a reduction was done. A bf16 sum is rounded once, to nearest, ties to even.
#pragma once

#include "tsprun/types.h"

#include <cstdint>
#include <functional>

namespace tsprun::detail::bench {

/// Function that is called now and then while a long buffer is processed, so that waiting peers don't take this rank for stalled.
using Tick = std::function<void()>;

/// Fills the buffer with the values of `rank` from index `first` on.
void fill(Buffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick);

/// Returns the number of elements that differ from the values of `rank` from index `first` on.
std::uint64_t count_wrong(ConstBuffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick);

/// Returns the number of elements that differ from the sums over ranks 0 … ranks−1 of their values from index `first` on.
std::uint64_t count_wrong_sums(ConstBuffer buffer, std::uint32_t seed, int ranks, std::uint64_t first, const Tick& tick);

}  // namespace tsprun::detail::bench
