// The allocator of a rank's heap: the part of node memory that peers may read or the NIC may touch.
//
// First fit over a table of free ranges. The table lies in private memory, so that no peer can damage it and untouched heap stays
// untouched. Blocks are aligned to 64 bytes.
//
// The budget counts bytes, not places: what is free in too small pieces is of no account. The reservation is several times as
// large, so that a block that fits no hole lies behind all others; and once that takes more pages than the budget, pages that no
// block lies on are given back. Where a block lies depends on the blocks alone, so that a program that repeats itself uses the
// same addresses again, and has no page fault as long as nothing must be given back. Beyond the budget's bytes blocks take the
// rest of pages that they fill in part.
//
// Every block bears a category. Use, peaks and the budget count the bytes that were asked for, so that they can be held against
// formulas; in_use() and peak() count what blocks take, alignment included.
#pragma once

#include "core/memory/category.h"
#include "core/memory/page_runs.h"
#include "core/tensor/dtype.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace tsprun {

class Heap;

/// Owns a block of a heap. The heap must outlive it.
class HeapBlock {
 public:
  HeapBlock() = default;
  HeapBlock(HeapBlock&& other) noexcept
      : heap_(std::exchange(other.heap_, nullptr)), bytes_(std::exchange(other.bytes_, {})), category_(other.category_) {}
  HeapBlock& operator=(HeapBlock&& other) noexcept {
    if (this != &other) {
      reset();
      heap_ = std::exchange(other.heap_, nullptr);
      bytes_ = std::exchange(other.bytes_, {});
      category_ = other.category_;
    }
    return *this;
  }
  ~HeapBlock() { reset(); }

  void reset();
  std::span<std::byte> bytes() const { return bytes_; }
  /// The block as elements of T.
  template <Element T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  friend class Heap;
  HeapBlock(Heap* heap, std::span<std::byte> bytes, Category category) : heap_(heap), bytes_(bytes), category_(category) {}
  Heap* heap_ = nullptr;
  std::span<std::byte> bytes_;
  Category category_ = Category::communication;
};

class Heap {
 public:
  /// Called before a range of the reservation is used for the first time, or again after it was given back.
  using Commit = std::function<void(std::size_t offset, std::size_t bytes)>;
  /// Gives the memory of a range of whole pages back, which no block lies on. False: it stays, and so would any other.
  using Release = std::function<bool(std::size_t offset, std::size_t bytes)>;

  /// How much address space a heap with this budget has: room enough that there is always a place behind all blocks.
  static constexpr std::uint64_t reservation_for(std::uint64_t budget) {
    constexpr std::uint64_t kTimes = 4;
    return budget > ~std::uint64_t{0} / (2 * kTimes) ? budget : (kTimes * budget + kPage - 1) / kPage * kPage;
  }

  /// `budget` 0: as much as the reservation holds, and nothing is ever given back.
  Heap(std::span<std::byte> reservation, std::uint64_t budget, Commit commit, Release release = {});
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// `what` names the buffer in the error if it doesn't fit. Zero bytes give an empty block.
  /// The memory isn't zeroed. Throws Error(out_of_memory): what was asked for, for what, what is in use by category, the budget.
  HeapBlock allocate(std::size_t bytes, std::string_view what, Category category = Category::communication);
  template <Element T>
  HeapBlock allocate_elements(std::size_t count, std::string_view what) {
    return allocate(count * sizeof(T), what);
  }

  /// The next allocation fails with Error(out_of_memory) that gives this reason: for fault injection.
  void fail_next(std::string reason) { fail_next_ = std::move(reason); }

  bool contains(std::span<const std::byte> memory) const;
  std::uint64_t in_use() const { return in_use_; }
  std::uint64_t peak() const { return peak_; }
  std::uint64_t budget() const { return budget_; }
  /// Bytes of the pages that may take memory: those that blocks lie on, and those that did and weren't given back. Counted under
  /// a budget alone, else 0.
  std::uint64_t resident() const { return resident_.count() * kPage; }
  /// Bytes asked for and not yet given back, by category.
  const CategoryBytes& use() const { return use_; }
  const CategoryBytes& peaks() const { return peaks_; }
  /// Forgets earlier peaks: they begin at what is in use.
  void reset_peaks() {
    peaks_ = use_;
    peak_ = in_use_;
  }

 private:
  friend class HeapBlock;
  static constexpr std::size_t kPage = 4096;

  void free(std::span<std::byte> bytes, Category category);
  void give_to_free(std::size_t start, std::size_t length);
  void make_usable(std::size_t begin, std::size_t end);
  void release_pages(std::size_t pages);
  void count(Category category, std::size_t bytes);
  std::string breakdown() const;

  std::span<std::byte> reservation_;
  std::uint64_t budget_;
  bool limited_;  // by a budget
  Commit commit_;
  Release release_;
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes, coalesced
  std::size_t committed_ = 0;                // everything below is committed; without a budget
  PageRuns resident_;                        // under a budget: the pages that are committed
  std::uint64_t in_use_ = 0;
  std::uint64_t peak_ = 0;
  CategoryBytes use_;
  CategoryBytes peaks_;
  std::string fail_next_;  // empty: nothing shall fail
};

}  // namespace tsprun
