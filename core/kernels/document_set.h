// The documents of some rows where tokens are dealt, as flash attention asks which other rows have one of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail::kernels::flash {

/// The documents of some rows. Of more than kMost, all from the least to the largest count as theirs.
class DocumentSet {
 public:
  static constexpr std::size_t kMost = 16;

  /// Takes the documents of at least one row, each by the number that names it.
  explicit DocumentSet(std::span<const std::uint32_t> rows) : least_(rows.front()), largest_(rows.front()) {
    std::uint32_t last = names_[0] = rows.front();
    for (const std::uint32_t name : rows) {
      if (name == last) continue;  // rows of one document lie together
      last = name;
      least_ = std::min(least_, name);
      largest_ = std::max(largest_, name);
      if (count_ > kMost || listed(name)) continue;
      if (count_ < kMost) names_[count_] = name;
      ++count_;
    }
  }

  /// Returns whether it holds this document, or may.
  bool holds(std::uint32_t name) const { return between(name) && (count_ > kMost || listed(name)); }
  /// Returns whether it holds the document of any of these rows. Counting is vectorised, unlike a search that stops at the first.
  bool holds_any(std::span<const std::uint32_t> rows) const {
    if (std::ranges::count_if(rows, [&](std::uint32_t name) { return between(name); }) == 0) return false;
    if (count_ > kMost) return true;
    const auto among = [&](std::uint32_t name) { return std::ranges::count(rows, name) > 0; };
    return std::any_of(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(count_), among);
  }

 private:
  bool between(std::uint32_t name) const { return name >= least_ && name <= largest_; }
  bool listed(std::uint32_t name) const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (names_[i] == name) return true;
    }
    return false;
  }

  std::array<std::uint32_t, kMost> names_ = {};
  std::size_t count_ = 1;  // more than kMost: not all are listed
  std::uint32_t least_;
  std::uint32_t largest_;
};

}  // namespace tsprun::detail::kernels::flash
