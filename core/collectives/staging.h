// Staging memory: heap memory into which small payloads are copied before peers read them, so that an operation can complete
// while slower peers still read.
//
// Each stream has a ring buffer of its own, so peers that read one stream late don't hold up another stream. A ring is allocated
// in full size with the first payload that is staged, or would be on a machine where ranks share cores, so that memory use
// depends only on which streams stage anything, and not on how far ranks run ahead of each other. A rank that runs further ahead
// than the ring is long waits for the readers of the oldest block.
#pragma once

#include "core/collectives/choice.h"
#include "core/memory/heap.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace tsprun::detail {

/// A sent message whose payload its receiver may not have read yet.
struct PendingSend {
  Transport* transport;
  LaneId lane;
  Ticket ticket;
  int world;  ///< world rank of the receiver
};

/// The staging memory of one rank, shared by all its communicators.
class Staging {
 public:
  /// A part of a ring that holds one payload. Whoever takes it must call give_back().
  class Block {
   public:
    std::span<std::byte> bytes() const { return bytes_; }
    /// Adds a message that reads the block: the block isn't reused until its receiver has read it.
    void add_reader(const PendingSend& reader) { readers_.push_back(reader); }
    /// Gives the block back, to be reused when all readers are done. Call it after the last add_reader().
    void give_back() { taken_ = false; }

   private:
    friend class Staging;
    std::span<std::byte> bytes_;
    std::size_t offset_ = 0;  // in the ring
    std::vector<PendingSend> readers_;
    bool taken_ = false;
  };

  explicit Staging(Heap& heap) : heap_(&heap) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Allocates the stream's ring of kStagingRingBytes, unless it has one. Throws Error(out_of_memory).
  void reserve(Stream stream);
  /// Takes a free block of `bytes` (1 to kStagedBytes) from the stream's ring; null: there is no room until reader() has read.
  /// Preconditions: reserve(stream) was called; blocks of the stream that were taken earlier were given back.
  Block* take(Stream stream, std::size_t bytes);
  /// Returns the world rank of a reader of the stream's oldest block. Precondition: take() has just found no room.
  int reader(Stream stream) const;

 private:
  /// Largest number of blocks in a ring: every staged payload is larger than kCopiedBytes.
  static constexpr std::size_t kBlocks = kStagingRingBytes / kCopiedBytes;

  struct Ring {
    HeapBlock memory;
    std::vector<Block> blocks;  // kBlocks of them, used in turn, so that their lists of readers keep their memory
    std::size_t oldest = 0;     // index of the oldest block in use
    std::size_t used = 0;       // number of blocks in use from there on, cyclic
  };
  static bool is_free(Block& block);
  Ring& ring(Stream stream) { return rings_[static_cast<std::size_t>(stream)]; }

  Heap* heap_;
  std::array<Ring, kQueues> rings_;
};

}  // namespace tsprun::detail
