// A set of pages as runs of neighbours: which pages of a heap may take memory.
#pragma once

#include <cstddef>
#include <functional>
#include <map>

namespace tsprun {

class PageRuns {
 public:
  /// Called with the first page of a run and the page behind its last.
  using Visitor = std::function<void(std::size_t begin, std::size_t end)>;

  /// Pages in the set.
  std::size_t count() const { return count_; }
  /// Pages of [begin, end) that aren't in the set.
  std::size_t missing(std::size_t begin, std::size_t end) const;
  /// All runs of the set, in order.
  void for_each(const Visitor& visit) const {
    for (const auto& [begin, end] : runs_) visit(begin, end);
  }
  /// The runs of [begin, end) that aren't in the set, in order.
  void for_each_missing(std::size_t begin, std::size_t end, const Visitor& visit) const;
  void add(std::size_t begin, std::size_t end);
  /// Takes at most `most` pages of [begin, end) out of the set, the last ones first, and tells of each run taken. How many.
  std::size_t take_last(std::size_t begin, std::size_t end, std::size_t most, const Visitor& visit);

 private:
  std::map<std::size_t, std::size_t> runs_;  // first page -> the page behind the last; neither overlapping nor touching
  std::size_t count_ = 0;
};

}  // namespace tsprun
