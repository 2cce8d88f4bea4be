// How the buffer of a collective is cut into one chunk a rank. All in elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tsprun {

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
    chunks.counts_.assign(counts.begin(), counts.end());
    chunks.offsets_.reserve(counts.size());
    for (const std::size_t count : counts) {
      chunks.offsets_.push_back(chunks.total_);
      chunks.total_ += count;
      chunks.largest_ = std::max(chunks.largest_, count);
    }
    return chunks;
  }

  /// A chunk of counts[r] elements at offsets[r] for each r: in any order, with holes, not overlapping. Where an empty chunk lies
  /// is of no account.
  static Chunks placed(std::span<const std::size_t> counts, std::span<const std::size_t> offsets) {
    Chunks chunks = listed(counts);
    for (std::size_t c = 0; c < counts.size(); ++c) chunks.offsets_[c] = counts[c] == 0 ? 0 : offsets[c];
    return chunks;
  }

  std::size_t offset(int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return offsets_.empty() ? c * base_ + std::min(c, longer_) : offsets_[c];
  }
  std::size_t count(int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return counts_.empty() ? base_ + (c < longer_ ? 1 : 0) : counts_[c];
  }
  /// Elements of all chunks together.
  std::size_t total() const { return total_; }
  std::size_t largest() const { return largest_; }

 private:
  Chunks(int n, std::size_t base, std::size_t longer)
      : base_(base),
        longer_(longer),
        largest_(base + (longer > 0 ? 1 : 0)),
        total_(static_cast<std::size_t>(n) * base + longer) {}

  std::size_t base_;
  std::size_t longer_;  // so many chunks have one element more
  std::size_t largest_;
  std::size_t total_;
  std::vector<std::size_t> counts_;  // of listed and placed chunks, n entries
  std::vector<std::size_t> offsets_;
};

}  // namespace tsprun
