// Staging memory: heap memory to which small payloads are copied before they are offered to peers, so that an operation may end
// while slower peers still read.
//
// A ring for each stream, as streams have lanes of their own: what one stream's peers haven't read holds up no other stream. It
// has its full size from the first payload on, so that what a rank's staging takes depends on which streams stage anything, never
// on how far ranks run ahead of each other; who runs further ahead than the ring is long waits for the oldest readers.
#pragma once

#include "core/collectives/choice.h"
#include "core/memory/heap.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace tsprun {

/// A message that its receiver may not have taken yet.
struct PendingSend {
  Transport* transport;
  LaneId lane;
  Ticket ticket;
  int world;  ///< the receiver's rank in the world
};

class Staging {
 public:
  /// A part of a ring in use. Who takes it gives it back.
  class Block {
   public:
    std::span<std::byte> bytes() const { return bytes_; }
    /// One more reader for which the block must stay as it is.
    void add_reader(const PendingSend& reader) { readers_.push_back(reader); }
    /// To be called when all readers are named.
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

  /// From now on the stream has its ring: kStagingRingBytes, once. Throws Error(out_of_memory).
  void reserve(Stream stream);
  /// A block of `bytes` (1 to kStagedBytes) that nobody reads any more; null: there is no room before reader() has read.
  /// Precondition: reserve(stream); the stream's blocks taken earlier were given back.
  Block* take(Stream stream, std::size_t bytes);
  /// World rank of a reader of the stream's oldest block. Precondition: take() has just found no room.
  int reader(Stream stream) const;

 private:
  /// As many as fit: what is staged is larger than kCopiedBytes.
  static constexpr std::size_t kBlocks = kStagingRingBytes / kCopiedBytes;

  struct Ring {
    HeapBlock memory;
    std::vector<Block> blocks;  // kBlocks, used in turn, so that their lists of readers keep their memory
    std::size_t oldest = 0;     // of those in use
    std::size_t used = 0;       // from there on, cyclic
  };
  static bool is_free(Block& block);
  Ring& ring(Stream stream) { return rings_[static_cast<std::size_t>(stream)]; }

  Heap* heap_;
  std::array<Ring, kStreams> rings_;
};

}  // namespace tsprun
