// The allocator of a rank's heap: the part of node memory that peers may read or the NIC may touch.
//
// First fit over a table of free ranges. The table lies in private memory, so that no peer can damage it and untouched heap stays
// untouched. Blocks are aligned to 64 bytes, blocks of a page or more to the page.
//
// Every block bears a category. Use and peaks by category count the bytes that were asked for, so that they can be held against
// formulas; the budget and in_use() count what blocks take, alignment included.
#pragma once

#include "core/memory/category.h"
#include "core/tensor/dtype.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace tsp {

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
  /// Called before a range of the reservation is used for the first time.
  using Commit = std::function<void(std::size_t offset, std::size_t bytes)>;

  /// `budget` 0: as much as the reservation holds.
  Heap(std::span<std::byte> reservation, std::uint64_t budget, Commit commit);
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
  void free(std::span<std::byte> bytes, Category category);
  void count(Category category, std::size_t bytes);
  std::string breakdown() const;

  std::span<std::byte> reservation_;
  std::uint64_t budget_;
  Commit commit_;
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes, coalesced
  std::size_t committed_ = 0;                // everything below is committed
  std::uint64_t in_use_ = 0;
  std::uint64_t peak_ = 0;
  CategoryBytes use_;
  CategoryBytes peaks_;
  std::string fail_next_;  // empty: nothing shall fail
};

}  // namespace tsp
