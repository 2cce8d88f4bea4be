// Memory of coroutine frames and posted operations. Blocks that were given back are used again, so that in the steady state an
// operation allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun::detail {

/// Blocks of memory by size, used by the rank's thread. The pool must outlive all blocks that it lends.
class FramePool {
 public:
  FramePool() = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  ~FramePool();

  /// Returns a block of at least `bytes`, aligned for any ordinary type. Throws std::bad_alloc.
  void* take(std::size_t bytes);
  /// Gives a block back to the pool that lent it.
  static void give_back(void* block);
  /// Returns the number of blocks that had to be allocated so far, because none of their size was free.
  std::uint64_t allocated() const { return allocated_; }

 private:
  /// Header before each block.
  struct alignas(alignof(std::max_align_t)) Header {
    FramePool* pool;
    std::size_t size;
    Header* next;  // of the free blocks of this size
  };
  static constexpr std::size_t kUnit = 256;  // sizes are rounded up to multiples of it
  static constexpr std::size_t kSizes = 64;  // larger blocks aren't kept

  std::array<Header*, kSizes> free_{};
  std::uint64_t allocated_ = 0;
};

}  // namespace tsprun::detail
