// The two halves of a ring all_reduce, which are also a reduce_scatter and an all_gather, and the memory of partial sums. See
// ring_reduce_scatter.cpp and ring_all_gather.cpp for how they work.
#pragma once

#include "core/collectives/exchange.h"

#include <algorithm>
#include <array>

namespace tsprun::detail {

/// Returns the number of rounds in which pieces of `piece` elements move all chunks. An empty buffer takes one, of empty
/// messages.
inline std::size_t ring_rounds(const Chunks& chunks, std::size_t piece) {
  return std::max<std::size_t>(1, (chunks.largest() + piece - 1) / piece);
}
/// Returns the elements of a piece of partial sums, which travel in the accumulator's type and stay in the cache.
inline std::size_t ring_piece(DType dtype) { return kRingPieceBytes / size_of(kernels::accumulator_of(dtype)); }

/// Memory from which partial sums are sent to the right: two slots, so that one is filled while the other is read.
class RingSlots {
 public:
  /// Allocates slots of `bytes` each if `sends`, and a landing if messages from the left can't be viewed. Throws
  /// Error(out_of_memory).
  RingSlots(Collective& me, std::size_t bytes, bool sends = true);
  std::byte* slot(std::size_t hop) const { return memory_[hop % 2].bytes().data(); }
  /// Returns the condition that nobody reads slot `hop` mod 2 any more.
  auto writable(std::size_t hop) { return offers_[hop % 2].drained(); }
  /// Returns the condition that the first `bytes` of slot `hop` mod 2 have been sent to the right, as step `hop`.
  auto sent(std::size_t hop, std::size_t bytes) {
    return Until{[this, hop, bytes] { return send(hop, bytes); }};
  }
  /// Returns the memory into which messages are received that can't be viewed; null if they can.
  std::byte* landing() { return landing_.bytes().data(); }

 private:
  bool send(std::size_t hop, std::size_t bytes);

  Collective& me_;
  std::array<HeapBlock, 2> memory_;
  std::array<Offer, 2> offers_;
  HeapBlock landing_;
};

/// A ring reduce_scatter of a buffer, which writes this rank's chunk to `own_result`. The chunks are borrowed.
struct RingReducePhase {
  RingReducePhase(Collective& me, ConstBuffer buffer, const Chunks& cut, std::byte* own_result);
  /// Returns the number of messages that each rank sends; their steps are 0 … hops()-1.
  std::uint32_t hops() const { return static_cast<std::uint32_t>(rounds) * static_cast<std::uint32_t>(peers); }
  /// Returns the number of elements of a chunk's piece.
  std::size_t count(int chunk, std::size_t round) const;
  /// Returns this rank's part of a piece.
  const std::byte* part(int chunk, std::size_t round) const;

  ConstBuffer send;
  const Chunks& chunks;
  std::byte* result;
  std::size_t piece;  ///< elements
  std::size_t rounds;
  int peers;
  RingSlots slots;
};
/// Carries it out. `all` is borrowed.
Task ring_reduce_phase(Collective& me, RingReducePhase& all);

/// A ring all_gather into a buffer, in which the own chunk lies when it begins. The steps of messages count from `begin`. The
/// chunks are borrowed.
struct RingGatherPhase {
  RingGatherPhase(Collective& me, Buffer buffer, const Chunks& cut, std::uint32_t begin);
  std::span<std::byte> piece_of(int chunk, std::size_t round) const;

  const Chunks& chunks;
  Buffer recv;
  std::size_t piece;  ///< elements
  std::uint32_t first_step;
  Landing landing;
  Offer offer;
};
/// Carries it out. `all` is borrowed.
Task ring_gather_phase(Collective& me, RingGatherPhase& all);

}  // namespace tsprun::detail
