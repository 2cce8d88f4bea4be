// Cuts the buffer of a collective into chunks, one per rank. All numbers are in elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tsprun::detail {

/// The places and sizes of the chunks of a buffer.
class Chunks {
 public:
  /// Makes n chunks of `count` elements each, one after another.
  static Chunks uniform(int n, std::size_t count) { return {n, count, 0}; }
  /// Cuts `total` elements into n chunks, one after another; the first (total mod n) chunks are one element longer.
  static Chunks balanced(int n, std::size_t total) {
    return {n, total / static_cast<std::size_t>(n), total % static_cast<std::size_t>(n)};
  }
  /// Makes chunks of counts[r] elements, one after another.
  static Chunks listed(std::span<const std::size_t> counts) {
    Chunks chunks(static_cast<int>(counts.size()), 0, 0);
    chunks.places_.reserve(counts.size());
    for (const std::size_t count : counts) {
      chunks.places_.push_back({.count = count, .offset = chunks.total_});
      chunks.total_ += count;
      chunks.largest_ = std::max(chunks.largest_, count);
    }
    return chunks;
  }

  /// Makes chunks of counts[r] elements at offsets[r]: in any order, possibly with gaps, not overlapping. The offset of an empty
  /// chunk is ignored.
  static Chunks placed(std::span<const std::size_t> counts, std::span<const std::size_t> offsets) {
    Chunks chunks = listed(counts);
    for (std::size_t c = 0; c < counts.size(); ++c) chunks.places_[c].offset = counts[c] == 0 ? 0 : offsets[c];
    return chunks;
  }

  std::size_t offset(int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return places_.empty() ? c * base_ + std::min(c, longer_) : places_[c].offset;
  }
  std::size_t count(int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return places_.empty() ? base_ + (c < longer_ ? 1 : 0) : places_[c].count;
  }
  /// Returns the counts of chunks 0 to n − 1, each times `width`.
  std::vector<std::size_t> counts(int n, std::size_t width = 1) const {
    std::vector<std::size_t> all;
    for (int chunk = 0; chunk < n; ++chunk) all.push_back(count(chunk) * width);
    return all;
  }
  friend bool operator==(const Chunks&, const Chunks&) = default;
  /// Returns the sum of all counts.
  std::size_t total() const { return total_; }
  /// Returns the largest count.
  std::size_t largest() const { return largest_; }

 private:
  struct Place {
    std::size_t count;
    std::size_t offset;
    friend bool operator==(const Place&, const Place&) = default;
  };

  Chunks(int n, std::size_t base, std::size_t longer)
      : base_(base),
        longer_(longer),
        largest_(base + (longer > 0 ? 1 : 0)),
        total_(static_cast<std::size_t>(n) * base + longer) {}

  std::size_t base_;
  std::size_t longer_;  // number of chunks that have one element more
  std::size_t largest_;
  std::size_t total_;
  std::vector<Place> places_;  // n entries for listed and placed chunks, else empty
};

}  // namespace tsprun::detail
