// The bare loops: what the machine's memory allows, without any protocol around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail::bench {

/// to[i] = from[0][i] + from[1][i] + … for `count` elements: plain C++ for the compiler to vectorise, a cache-sized block at a
/// time, so that every stream is read from memory once and the sums are written once.
void sum_streams(float* to, std::span<const float* const> from, std::size_t count);
void sum_streams(double* to, std::span<const double* const> from, std::size_t count);

/// Returns the sum of all words: a stream that only reads.
std::uint64_t read_stream(std::span<const std::uint64_t> words);

}  // namespace tsprun::detail::bench
