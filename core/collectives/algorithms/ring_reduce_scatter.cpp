// reduce_scatter(_v), ring: a rank talks to its two neighbours only, to the left and right on the ring of all ranks. Every rank's
// buffer has a chunk for each rank. The sum of chunk c starts at rank c+1 and travels to the right, in the accumulator's type,
// each rank adding its own part, until it arrives at rank c: the canonical order. Chunks are cut into pieces small enough to stay
// in the cache: a round of n−1 hops moves one piece of every chunk, and shorter chunks have empty pieces. In hop i, i = 0 … n−2,
// a rank sends the piece for the rank i+1 places to its left and adds its part to that for the rank i+2 places to its left.
//
// n−1 steps a round; each rank sends n−1 messages a round, and receives sums of every chunk but its left neighbour's once.
#include "core/collectives/algorithms/ring.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

RingSlots::RingSlots(Collective& me, std::size_t bytes, bool sends) : me_(me), offers_{Offer(me), Offer(me)} {
  Heap& heap = *me.group().heap;
  for (HeapBlock& memory : memory_) memory = heap.allocate(sends ? bytes : 0, "partial sums of a ring");
  if (Message::needs_landing(me, me.left())) landing_ = heap.allocate(bytes, "partial sums of a ring");
}

bool RingSlots::send(std::size_t hop, std::size_t bytes) {
  Offer& offer = offers_[hop % 2];
  offer.set(memory_[hop % 2].bytes(), bytes, Readers::one, Owner::operation);
  return offer.send(me_.right(), static_cast<std::uint32_t>(hop), 0, bytes);
}

RingReducePhase::RingReducePhase(Collective& me, ConstBuffer buffer, const Chunks& cut, std::byte* own_result)
    : send(buffer),
      chunks(cut),
      result(own_result),
      piece(ring_piece(send.dtype)),
      rounds(ring_rounds(chunks, piece)),
      peers(me.peers()),
      slots(me, std::min(piece, chunks.largest()) * size_of(kernels::accumulator_of(send.dtype))) {}

std::size_t RingReducePhase::count(int chunk, std::size_t round) const {
  const std::size_t whole = chunks.count(chunk);
  return std::min(piece, whole - std::min(whole, round * piece));
}

const std::byte* RingReducePhase::part(int chunk, std::size_t round) const {
  return send.data + (chunks.offset(chunk) + std::min(chunks.count(chunk), round * piece)) * size_of(send.dtype);
}

Task ring_reduce_phase(Collective& me, RingReducePhase& all) {
  const DType dtype = all.send.dtype;
  const std::size_t wire = size_of(kernels::accumulator_of(dtype));
  std::uint32_t step = 0;
  for (std::size_t round = 0; round < all.rounds; ++round) {
    const int first = me.left();
    co_await all.slots.writable(step);
    me.widen(dtype, all.part(first, round), all.slots.slot(step), all.count(first, round));
    for (int hop = 0; hop < all.peers; ++hop, ++step) {
      const int going = me.left_by(hop + 1);
      co_await all.slots.sent(step, all.count(going, round) * wire);
      const bool last = hop == all.peers - 1;
      const int coming = last ? me.rank() : me.left_by(hop + 2);
      const std::size_t count = all.count(coming, round);
      Message message(me, me.left(), step, count * wire, all.slots.landing(), kReceivedBytes,
                      static_cast<std::uint32_t>(round) + 1);
      co_await message;
      if (!last) co_await all.slots.writable(step + 1);
      std::byte* out =
          last ? all.result + std::min(all.chunks.count(coming), round * all.piece) * size_of(dtype) : all.slots.slot(step + 1);
      me.reduce_term(dtype, message.bytes(0, count * wire), all.part(coming, round), out, count, last);
      message.release();
      if (step + 1 < all.hops()) co_await me.pause();
    }
  }
  co_await all.slots.writable(0);
  co_await all.slots.writable(1);
}

Task ring_reduce_scatter(Collective& me, const Arguments& call) {
  RingReducePhase all(me, call.send, call.chunks, call.recv.data);
  co_await me.turn();
  co_await ring_reduce_phase(me, all);
  co_await me.finished();
}

std::uint64_t ring_reduce_scatter_received(const Group& group, const Arguments& call) {
  const int left = (group.rank + group.size() - 1) % group.size();
  return (call.chunks.total() - call.chunks.count(left)) * size_of(kernels::accumulator_of(call.send.dtype));
}

}  // namespace tsprun::detail
