// The n-stream sum and the read-only stream: see floor_loops.h.
#include "bench/floor_loops.h"

#include <algorithm>

// One copy of the loop for each vector level; the best that the machine has is picked when the program is loaded.
#define TSP_VECTOR_LEVELS __attribute__((target_clones("avx512f", "avx2", "default")))

namespace tsprun::detail::bench {

namespace {

// Bytes of the block of sums that stays in the first-level cache while the streams pass by.
constexpr std::size_t kBlockBytes = 4096;

TSP_VECTOR_LEVELS void add_two(float* __restrict to, const float* a, const float* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
}

TSP_VECTOR_LEVELS void add_two(double* __restrict to, const double* a, const double* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
}

TSP_VECTOR_LEVELS void add_to(float* __restrict to, const float* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += from[i];
}

TSP_VECTOR_LEVELS void add_to(double* __restrict to, const double* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += from[i];
}

TSP_VECTOR_LEVELS std::uint64_t sum_words(const std::uint64_t* words, std::size_t n) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += words[i];
  return sum;
}

template <class T>
void sum(T* to, std::span<const T* const> from, std::size_t count) {
  constexpr std::size_t kBlock = kBlockBytes / sizeof(T);
  if (from.size() == 1) {
    std::copy_n(from[0], count, to);
    return;
  }
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t n = std::min(kBlock, count - first);
    add_two(to + first, from[0] + first, from[1] + first, n);
    for (std::size_t stream = 2; stream < from.size(); ++stream) add_to(to + first, from[stream] + first, n);
  }
}

}  // namespace

void sum_streams(float* to, std::span<const float* const> from, std::size_t count) { sum(to, from, count); }

void sum_streams(double* to, std::span<const double* const> from, std::size_t count) { sum(to, from, count); }

std::uint64_t read_stream(std::span<const std::uint64_t> words) { return sum_words(words.data(), words.size()); }

}  // namespace tsprun::detail::bench
