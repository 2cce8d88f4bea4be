// Staging memory: blocks of the heap to which small payloads are copied before they are offered to peers, so that an operation
// may end while slower peers still read. A block is used again once all its readers are done.
#pragma once

#include "core/collectives/choice.h"
#include "core/memory/heap.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace tsp {

/// A message that its receiver may not have taken yet.
struct PendingSend {
  Transport* transport;
  LaneId lane;
  Ticket ticket;
  int world;  ///< the receiver's rank in the world
};

class Staging {
 public:
  /// A block in use. Its owner is the pool; who takes it gives it back.
  class Block {
   public:
    std::span<std::byte> bytes() const { return memory_.bytes(); }
    /// One more reader for which the block must stay as it is.
    void add_reader(const PendingSend& reader) { readers_.push_back(reader); }
    /// To be called when all readers are named.
    void give_back() { taken_ = false; }

   private:
    friend class Staging;
    HeapBlock memory_;
    std::vector<PendingSend> readers_;
    bool taken_ = false;
  };

  explicit Staging(Heap& heap) : heap_(&heap) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// A block of at least `bytes` (at most kStagedBytes) that nobody reads any more. The number of blocks is bounded by the lanes'
  /// credits: no lane carries more unread messages than those. Throws Error(out_of_memory).
  Block& take(std::size_t bytes);

 private:
  static constexpr std::size_t kSmallest = 1024;
  static constexpr std::size_t kSizes = 7;  // powers of two from kSmallest to kStagedBytes
  static_assert(kSmallest << (kSizes - 1) == kStagedBytes);

  struct Pool {
    std::vector<std::unique_ptr<Block>> blocks;  // in the order of use from `oldest` on, cyclic
    std::size_t oldest = 0;
  };
  static bool is_free(Block& block);

  Heap* heap_;
  std::array<Pool, kSizes> pools_;
};

}  // namespace tsp
