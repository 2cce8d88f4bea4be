// The heap's allocator: first fit over a table of free ranges, and the commitment and release of pages under a budget.
#include "core/memory/heap.h"

#include "core/program/recorder.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun {

using namespace detail;

namespace detail {

namespace {

constexpr std::size_t kLine = 64;
/// Memory is committed in steps of this size, so that many small blocks don't each cost a system call and a small heap stays
/// small.
constexpr std::size_t kCommitStep = std::size_t{1} << 20;

/// Smallest number of pages that are given back at a time, so that not every block costs system calls.
constexpr std::size_t kReleasedPages = 16;

constexpr std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

}  // namespace

}  // namespace detail

void HeapBlock::reset() {
  if (heap_ != nullptr) heap_->free(bytes_, category_);
  heap_ = nullptr;
  bytes_ = {};
}

namespace detail {

Heap::Heap(std::span<std::byte> reservation, std::uint64_t budget, Commit commit, Release release)
    : reservation_(reservation),
      budget_(budget == 0 ? reservation.size() : std::min<std::uint64_t>(budget, reservation.size())),
      limited_(budget != 0),
      commit_(std::move(commit)),
      release_(std::move(release)) {
  if (!reservation.empty()) free_.emplace(0, reservation.size());
}

HeapBlock Heap::allocate(std::size_t bytes, std::string_view what, Category category) {
  if (bytes == 0) return {};
  if (!fail_next_.empty()) {
    throw Error(Cause::out_of_memory, fmt::format("{}: {} bytes of {} are refused by {}: {} are in use{}", what, bytes,
                                                  name(category), std::exchange(fail_next_, {}), use_.total, breakdown()));
  }
  if (bytes > budget_ - std::min<std::uint64_t>(use_.total, budget_)) {
    throw Error(Cause::out_of_memory,
                fmt::format("{}: {} bytes of {} don't fit into the rank's heap: {} of its budget of {} are in use{}", what, bytes,
                            name(category), use_.total, budget_, breakdown()));
  }
  const std::size_t needed = round_up(bytes, kLine);
  std::size_t largest = 0;
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    largest = std::max(largest, length);
    if (needed > length) continue;

    range = free_.erase(range);
    if (needed < length) free_.emplace_hint(range, offset + needed, length - needed);
    try {
      make_usable(offset, offset + needed);
    } catch (...) {
      give_to_free(offset, needed);
      throw;
    }
    count(category, bytes);
    return HeapBlock(this, reservation_.subspan(offset, bytes), category);
  }
  throw Error(Cause::out_of_memory,
              fmt::format("{}: no {} bytes in one piece are free in the {} of address space of the rank's heap: {} of its budget "
                          "of {} are in use{}, the largest free piece has {}",
                          what, bytes, reservation_.size(), use_.total, budget_, breakdown(), largest));
}

/// Commits the parts of a range that aren't committed yet, before the range is used. Gives back other pages if a budget demands
/// it.
void Heap::make_usable(std::size_t begin, std::size_t end) {
  if (!limited_) {
    if (end <= committed_) return;
    const std::size_t target = std::min(round_up(end, kCommitStep), reservation_.size());
    if (commit_) commit_(committed_, target - committed_);
    committed_ = target;
    return;
  }
  const std::size_t first = begin / kPage;
  const std::size_t last = round_up(end, kPage) / kPage;
  const std::size_t missing = resident_.missing(first, last);
  if (missing == 0) return;
  const std::size_t most = round_up(budget_, kPage) / kPage;
  if (resident_.count() + missing > most) release_pages(resident_.count() + missing - most);
  if (commit_) {
    resident_.for_each_missing(first, last, [this](std::size_t from, std::size_t to) {
      const std::size_t start = from * kPage;
      commit_(start, std::min(to * kPage, reservation_.size()) - start);
    });
  }
  resident_.add(first, last);
}

/// Gives back about `pages` pages without a block, or fewer if there aren't as many. Begins at the end, because blocks are placed
/// at the first place that fits. If a page can't be given back, never tries again.
void Heap::release_pages(std::size_t pages) {
  if (!release_) return;
  pages = std::max(pages, kReleasedPages);
  PageRuns staying;
  for (auto range = free_.rbegin(); range != free_.rend() && pages > 0 && staying.count() == 0; ++range) {
    const auto [start, length] = *range;
    const std::size_t first = round_up(start, kPage) / kPage;
    const std::size_t last = (start + length) / kPage;
    if (first >= last) continue;
    pages -= resident_.take_last(first, last, pages, [&](std::size_t from, std::size_t to) {
      if (!release_(from * kPage, (to - from) * kPage)) staying.add(from, to);
    });
  }
  if (staying.count() == 0) return;
  release_ = {};
  staying.for_each([this](std::size_t from, std::size_t to) { resident_.add(from, to); });
}

void Heap::count(Category category, std::size_t bytes) {
  use_[category] += bytes;
  use_.total += bytes;
  peaks_[category] = std::max(peaks_[category], use_[category]);
  peaks_.total = std::max(peaks_.total, use_.total);
  show_use();
}

void Heap::show_use() const {
  if (shown_[0] == nullptr) return;
  shown_[0]->store(use_.total, std::memory_order_relaxed);
  shown_[1]->store(peaks_.total, std::memory_order_relaxed);
}

/// Returns the bytes in use for an error: " (parameters 4096, activations 1024)"; empty if none are in use.
std::string Heap::breakdown() const {
  std::string text;
  for (std::size_t i = 0; i < kCategories; ++i) {
    if (use_.of[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", name(static_cast<Category>(i)), use_.of[i]);
  }
  return text.empty() ? text : text + ")";
}

void Heap::free(std::span<std::byte> bytes, Category category) {
  if (recorder_ != nullptr) recorder_->give(bytes);
  use_[category] -= bytes.size();
  use_.total -= bytes.size();
  show_use();
  const std::size_t length = round_up(bytes.size(), kLine);
  give_to_free(static_cast<std::size_t>(bytes.data() - reservation_.data()), length);
}

/// Adds a range to the free ones and joins it with its free neighbours.
void Heap::give_to_free(std::size_t start, std::size_t length) {
  auto next = free_.lower_bound(start);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == start) {
      start = before->first;
      length += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && start + length == next->first) {
    length += next->second;
    free_.erase(next);
  }
  free_.emplace(start, length);
}

bool Heap::contains(std::span<const std::byte> memory) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto first = reinterpret_cast<std::uintptr_t>(reservation_.data());
  return begin >= first && begin - first <= reservation_.size() && memory.size() <= reservation_.size() - (begin - first);
}

}  // namespace detail
}  // namespace tsprun
