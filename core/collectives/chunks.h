// How the buffer of a collective is cut into one chunk a rank. All in elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tsp {

class Chunks {
 public:
  /// n chunks of `count` each.
  static Chunks uniform(int n, std::size_t count) { return {n, count, 0}; }
  /// `total` elements in n chunks, the first total mod n one element longer.
  static Chunks balanced(int n, std::size_t total) {
    return {n, total / static_cast<std::size_t>(n), total % static_cast<std::size_t>(n)};
  }
  /// A chunk for each entry.
  static Chunks listed(std::span<const std::size_t> counts) {
    Chunks chunks(static_cast<int>(counts.size()), 0, 0);
    chunks.offsets_.reserve(counts.size() + 1);
    chunks.offsets_.push_back(0);
    for (const std::size_t count : counts) {
      chunks.offsets_.push_back(chunks.offsets_.back() + count);
      chunks.largest_ = std::max(chunks.largest_, count);
    }
    return chunks;
  }

  std::size_t offset(int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return offsets_.empty() ? c * base_ + std::min(c, longer_) : offsets_[c];
  }
  std::size_t count(int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return offsets_.empty() ? base_ + (c < longer_ ? 1 : 0) : offsets_[c + 1] - offsets_[c];
  }
  std::size_t total() const { return offset(n_ - 1) + count(n_ - 1); }
  std::size_t largest() const { return largest_; }

 private:
  Chunks(int n, std::size_t base, std::size_t longer)
      : n_(n), base_(base), longer_(longer), largest_(base + (longer > 0 ? 1 : 0)) {}

  int n_;
  std::size_t base_;
  std::size_t longer_;  // so many chunks have one element more
  std::size_t largest_;
  std::vector<std::size_t> offsets_;  // of listed chunks, n+1 entries
};

}  // namespace tsp
