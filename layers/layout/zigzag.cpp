// Computes owners, positions and runs from the chunk numbers p and 2D−1−p.
#include "layers/layout/zigzag.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

namespace {
int checked(int ranks) {
  if (ranks < 1) throw Error(Cause::refused, fmt::format("a sequence can't be cut over {} ranks; expected at least 1", ranks));
  return ranks;
}
}  // namespace

std::size_t pairs_before(std::size_t end, std::size_t window) {
  const std::size_t rising = window == 0 ? end : std::min(end, window);
  return rising * (rising + 1) / 2 + (end - rising) * window;
}

Zigzag::Zigzag(std::size_t sequence, int ranks)
    : sequence_(sequence), ranks_(checked(ranks)), table_(Chunks::balanced(2 * ranks, sequence)) {}

std::size_t Zigzag::tokens(int rank) const {
  const auto [first, second] = chunks_of(rank);
  return chunk_size(first) + chunk_size(second);
}

std::vector<std::int64_t> Zigzag::positions(int rank) const {
  std::vector<std::int64_t> result;
  result.reserve(tokens(rank));
  for (const int chunk : chunks_of(rank)) {
    for (std::size_t position = chunk_start(chunk); position < chunk_end(chunk); ++position) {
      result.push_back(static_cast<std::int64_t>(position));
    }
  }
  return result;
}

std::size_t Zigzag::attention_pairs(int rank, std::size_t window, std::span<const std::uint32_t> documents) const {
  const auto whole = static_cast<std::uint32_t>(sequence_);
  const std::span<const std::uint32_t> lengths = documents.empty() ? std::span(&whole, 1) : documents;
  std::size_t pairs = 0;
  for (const int chunk : chunks_of(rank)) {
    std::size_t start = 0;
    for (const std::uint32_t length : lengths) {
      if (start >= chunk_end(chunk)) break;
      const auto within = [&](std::size_t position) { return std::clamp<std::size_t>(position, start, start + length) - start; };
      pairs += pairs_before(within(chunk_end(chunk)), window) - pairs_before(within(chunk_start(chunk)), window);
      start += length;
    }
  }
  return pairs;
}

}  // namespace tsprun::detail
