// First fit over the table of free ranges.
#include "core/memory/heap.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsp {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
/// Memory is committed in steps of this size, so that many small blocks don't each cost a system call and a small heap stays
/// small.
constexpr std::size_t kCommitStep = std::size_t{1} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }
/// Blocks of a page or more start on a page and fill it, smaller ones on a line.
constexpr std::size_t alignment_of(std::size_t bytes) { return bytes >= kPage ? kPage : kLine; }

}  // namespace

void HeapBlock::reset() {
  if (heap_ != nullptr) heap_->free(bytes_, category_);
  heap_ = nullptr;
  bytes_ = {};
}

Heap::Heap(std::span<std::byte> reservation, std::uint64_t budget, Commit commit)
    : reservation_(reservation),
      budget_(budget == 0 ? reservation.size() : std::min<std::uint64_t>(budget, reservation.size())),
      commit_(std::move(commit)) {
  if (!reservation.empty()) free_.emplace(0, reservation.size());
}

HeapBlock Heap::allocate(std::size_t bytes, std::string_view what, Category category) {
  if (bytes == 0) return {};
  if (!fail_next_.empty()) {
    throw Error(Cause::out_of_memory, fmt::format("{}: {} bytes of {} are refused by {}: {} are in use{}", what, bytes,
                                                  name(category), std::exchange(fail_next_, {}), in_use_, breakdown()));
  }
  const std::size_t alignment = alignment_of(bytes);
  // The first test keeps the rounding from overflowing.
  if (bytes > budget_ || round_up(bytes, alignment) > budget_ - std::min<std::uint64_t>(in_use_, budget_)) {
    throw Error(Cause::out_of_memory,
                fmt::format("{}: {} bytes of {} don't fit into the rank's heap: {} of its budget of {} are in use{}", what, bytes,
                            name(category), in_use_, budget_, breakdown()));
  }
  const std::size_t needed = round_up(bytes, alignment);
  std::size_t largest = 0;
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [start, length] = *range;
    const std::size_t offset = round_up(start, alignment);
    largest = std::max(largest, length);
    if (offset - start > length || needed > length - (offset - start)) continue;

    const std::size_t end = offset + needed;
    if (end > committed_) {
      const std::size_t target = std::min(round_up(end, kCommitStep), reservation_.size());
      if (commit_) commit_(committed_, target - committed_);
      committed_ = target;
    }
    const std::size_t rest = start + length - end;
    if (rest > 0) free_.emplace_hint(std::next(range), end, rest);
    if (offset > start) {
      range->second = offset - start;
    } else {
      free_.erase(range);
    }
    in_use_ += needed;
    peak_ = std::max(peak_, in_use_);
    count(category, bytes);
    return HeapBlock(this, reservation_.subspan(offset, bytes), category);
  }
  throw Error(
      Cause::out_of_memory,
      fmt::format("{}: no {} bytes in one piece are free in the rank's heap: {} of its budget of {} are in use{}, the largest "
                  "free piece has {}",
                  what, bytes, in_use_, budget_, breakdown(), largest));
}

void Heap::count(Category category, std::size_t bytes) {
  use_[category] += bytes;
  use_.total += bytes;
  peaks_[category] = std::max(peaks_[category], use_[category]);
  peaks_.total = std::max(peaks_.total, use_.total);
}

/// " (parameters 4096, activations 1024)"; nothing where nothing is in use.
std::string Heap::breakdown() const {
  std::string text;
  for (std::size_t i = 0; i < kCategories; ++i) {
    if (use_.of[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", name(static_cast<Category>(i)), use_.of[i]);
  }
  return text.empty() ? text : text + ")";
}

void Heap::free(std::span<std::byte> bytes, Category category) {
  use_[category] -= bytes.size();
  use_.total -= bytes.size();
  std::size_t start = static_cast<std::size_t>(bytes.data() - reservation_.data());
  std::size_t length = round_up(bytes.size(), alignment_of(bytes.size()));
  in_use_ -= length;
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

}  // namespace tsp
