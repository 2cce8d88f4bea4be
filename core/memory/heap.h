// The allocator of a rank's heap: the part of the node's shared memory that peers read from and NICs read and write.
//
// First fit over a table of free ranges. The table is in private memory, so that no peer can damage it and unused heap pages are
// never touched. Blocks are aligned to 64 bytes.
//
// The budget limits the bytes in use; fragmentation doesn't count against it. The address space is several times as large as the
// budget, so a block that fits no hole is placed behind all others; when that would make more pages resident than the budget
// allows, pages without a block are given back to the system. Placement depends only on the blocks, so a program that repeats its
// allocations gets the same addresses again and, as long as nothing was given back, no page faults. Memory use may exceed the
// budget by the unused parts of pages that blocks fill partly.
//
// Every block has a category. use(), peaks() and the budget count the bytes that were asked for, so that they can be compared
// with formulas.
#pragma once

#include "core/memory/page_runs.h"
#include "tsprun/memory.h"
#include "tsprun/types.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace tsprun::detail {

class Recorder;

/// The heap of one rank; used by one thread at a time, the rank's.
class Heap {
 public:
  /// Callback that makes a range of the reservation usable. Called before the range is used for the first time, and again before
  /// it is reused after Release gave it back. `offset` and `bytes` are relative to the reservation.
  using Commit = std::function<void(std::size_t offset, std::size_t bytes)>;
  /// Callback that gives the memory of whole pages, on which no block lies, back to the system. Returns false if memory can't be
  /// given back; it isn't called again then.
  using Release = std::function<bool(std::size_t offset, std::size_t bytes)>;

  /// Returns the address space, in bytes, that a heap with this budget needs: four times the budget in whole pages, so that there
  /// is usually room behind all blocks.
  static constexpr std::uint64_t reservation_for(std::uint64_t budget) {
    constexpr std::uint64_t kTimes = 4;
    return budget > ~std::uint64_t{0} / (2 * kTimes) ? budget : (kTimes * budget + kPage - 1) / kPage * kPage;
  }

  /// Manages `reservation`, which must outlive the heap. `budget` in bytes; 0: limited only by the reservation, and no memory is
  /// ever given back to the system.
  Heap(std::span<std::byte> reservation, std::uint64_t budget, Commit commit, Release release = {});
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Allocates a block; 0 bytes give an empty one. The memory isn't zeroed. `what` names the buffer in errors. Throws
  /// Error(out_of_memory) naming buffer, size, budget and the bytes in use by category.
  HeapBlock allocate(std::size_t bytes, std::string_view what, Category category = Category::communication);

  /// Tells a recorder of each block that is given back from now on; null: none. Borrowed.
  void record(Recorder* recorder) { recorder_ = recorder; }
  /// Keeps two counters at the bytes in use and at their peak from now on, for readers in other processes. Borrowed.
  void show(std::atomic<std::uint64_t>& use, std::atomic<std::uint64_t>& peak) {
    shown_ = {&use, &peak};
    show_use();
  }
  /// Makes the next allocation of more than 0 bytes throw Error(out_of_memory) with this reason. For fault injection.
  void fail_next(std::string reason) { fail_next_ = std::move(reason); }

  /// Returns true if `memory` lies within the reservation.
  bool contains(std::span<const std::byte> memory) const;
  /// Returns the limit of bytes in use: the budget, or the reservation's size if that is smaller or no budget was given.
  std::uint64_t budget() const { return budget_; }
  /// Returns the bytes of all pages that may hold memory: those with blocks, and those that had blocks and were not given back.
  /// Counted only if a budget was given, else 0.
  std::uint64_t resident() const { return resident_.count() * kPage; }
  /// Returns the bytes that were asked for and not yet given back, by category.
  const CategoryBytes& use() const { return use_; }
  /// Returns the largest value of each entry of use(), total included, so far.
  const CategoryBytes& peaks() const { return peaks_; }

 private:
  friend class tsprun::HeapBlock;
  static constexpr std::size_t kPage = 4096;

  void free(std::span<std::byte> bytes, Category category);
  void give_to_free(std::size_t start, std::size_t length);
  void make_usable(std::size_t begin, std::size_t end);
  void release_pages(std::size_t pages);
  void count(Category category, std::size_t bytes);
  void show_use() const;
  std::string breakdown() const;

  std::span<std::byte> reservation_;
  std::uint64_t budget_;
  bool limited_;  // a budget was given
  Commit commit_;
  Release release_;
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes, coalesced
  std::size_t committed_ = 0;                // everything below is committed; without a budget
  PageRuns resident_;                        // under a budget: the pages that are committed
  CategoryBytes use_;
  CategoryBytes peaks_;
  std::array<std::atomic<std::uint64_t>*, 2> shown_ = {};  // use and peak; null: nobody reads them
  Recorder* recorder_ = nullptr;
  std::string fail_next_;  // empty: nothing shall fail
};

}  // namespace tsprun::detail
