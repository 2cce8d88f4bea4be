// Set operations on runs of pages, kept in an ordered map from first page to end.
#include "core/memory/page_runs.h"

#include <algorithm>
#include <iterator>

namespace tsprun::detail {

void PageRuns::for_each_missing(std::size_t begin, std::size_t end, const Visitor& visit) const {
  auto run = runs_.upper_bound(begin);
  if (run != runs_.begin()) begin = std::max(begin, std::prev(run)->second);
  for (; run != runs_.end() && run->first < end; ++run) {
    if (begin < run->first) visit(begin, run->first);
    begin = run->second;
  }
  if (begin < end) visit(begin, end);
}

std::size_t PageRuns::missing(std::size_t begin, std::size_t end) const {
  std::size_t pages = 0;
  for_each_missing(begin, end, [&](std::size_t first, std::size_t last) { pages += last - first; });
  return pages;
}

void PageRuns::add(std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  count_ += missing(begin, end);
  auto run = runs_.upper_bound(begin);
  if (run != runs_.begin() && std::prev(run)->second >= begin) --run;
  while (run != runs_.end() && run->first <= end) {
    begin = std::min(begin, run->first);
    end = std::max(end, run->second);
    run = runs_.erase(run);
  }
  runs_.emplace_hint(run, begin, end);
}

std::size_t PageRuns::take_last(std::size_t begin, std::size_t end, std::size_t most, const Visitor& visit) {
  std::size_t taken = 0;
  while (taken < most) {
    auto run = runs_.lower_bound(end);
    if (run == runs_.begin()) break;
    --run;
    const auto [first, last] = *run;
    const std::size_t stop = std::min(last, end);
    const std::size_t low = std::max(first, begin);
    if (low >= stop) break;
    const std::size_t start = stop - std::min(stop - low, most - taken);
    if (start > first) run->second = start;
    else runs_.erase(run);
    if (stop < last) runs_.emplace(stop, last);
    taken += stop - start;
    count_ -= stop - start;
    visit(start, stop);
    end = start;
  }
  return taken;
}

}  // namespace tsprun::detail
