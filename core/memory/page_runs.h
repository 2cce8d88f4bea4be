// A set of page numbers, stored as runs of consecutive pages. The heap keeps the pages that may hold memory in it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>

namespace tsprun::detail {

/// A set of page numbers. Ranges are half-open: [begin, end).
class PageRuns {
 public:
  /// Callback for a run of pages [begin, end).
  using Visitor = std::function<void(std::size_t begin, std::size_t end)>;

  /// Returns the number of pages in the set.
  std::size_t count() const { return count_; }
  /// Returns the number of pages of [begin, end) that are not in the set.
  std::size_t missing(std::size_t begin, std::size_t end) const;
  /// Calls `visit` for each run of the set, in ascending order.
  void for_each(const Visitor& visit) const {
    for (const auto& [begin, end] : runs_) visit(begin, end);
  }
  /// Calls `visit` for each run of pages in [begin, end) that are not in the set, in ascending order.
  void for_each_missing(std::size_t begin, std::size_t end, const Visitor& visit) const;
  /// Adds the pages [begin, end), of which some may be in the set already.
  void add(std::size_t begin, std::size_t end);
  /// Removes at most `most` pages of [begin, end) from the set, the highest first, and calls `visit` for each run removed.
  /// Returns the number of pages removed.
  std::size_t take_last(std::size_t begin, std::size_t end, std::size_t most, const Visitor& visit);

 private:
  std::map<std::size_t, std::size_t> runs_;  // first page -> the page behind the last; neither overlapping nor touching
  std::size_t count_ = 0;
};

}  // namespace tsprun::detail
