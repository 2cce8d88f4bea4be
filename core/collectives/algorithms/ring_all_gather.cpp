// all_gather(_v), ring: a rank talks to its two neighbours only, to the left and right on the ring of all ranks. Chunks, the
// ranks' parts of the result, travel to the right in pieces of kSegmentBytes: in hop i of a round, i = 0 … n−2, a rank sends a
// piece of the chunk of the rank i places to its left, and receives that of the rank i+1 places to its left, straight into its
// place, from where it sends it on in the next hop. A round moves one piece of every chunk; shorter chunks have empty pieces.
//
// n−1 steps a round; each rank sends n−1 messages a round and receives every byte that isn't its own once.
#include "core/collectives/algorithms/ring.h"
#include "core/collectives/registry.h"

#include <algorithm>

namespace tsprun::detail {

RingGatherPhase::RingGatherPhase(Collective& me, Buffer buffer, const Chunks& cut, std::uint32_t begin)
    : chunks(cut),
      recv(buffer),
      piece(kSegmentBytes / size_of(recv.dtype)),
      first_step(begin),
      landing(me, recv.as_bytes()),
      offer(me, recv.as_bytes(), std::min(piece, chunks.largest()) * size_of(recv.dtype), Readers::one) {}

std::span<std::byte> RingGatherPhase::piece_of(int chunk, std::size_t round) const {
  const std::size_t count = chunks.count(chunk);
  const std::size_t first = std::min(count, round * piece);
  return recv.slice(chunks.offset(chunk) + first, std::min(piece, count - first)).as_bytes();
}

Task ring_gather_phase(Collective& me, RingGatherPhase& all) {
  const std::size_t rounds = ring_rounds(all.chunks, all.piece);
  std::uint32_t step = all.first_step;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (int hop = 0; hop < me.size() - 1; ++hop, ++step) {
      if (step != all.first_step) co_await me.pause();
      const std::span<std::byte> going = all.piece_of(me.left_by(hop), round);
      const auto offset = static_cast<std::size_t>(going.data() - all.recv.data);
      co_await all.offer.prepared(offset, going.size());
      co_await all.offer.sent(me.right(), step, offset, going.size());
      const std::span<std::byte> coming = all.piece_of(me.left_by(hop + 1), round);
      co_await Arrival(all.landing, me.left(), step, coming, static_cast<std::uint32_t>(round) + 1);
    }
  }
  co_await all.offer.drained();
}

Task ring_all_gather(Collective& me, const Arguments& call) {
  const std::span<std::byte> own = call.recv.slice(call.chunks.offset(me.rank()), call.chunks.count(me.rank())).as_bytes();
  RingGatherPhase gather(me, call.recv, call.chunks, 0);
  co_await me.turn();
  co_await LocalCopy(me, own.data(), call.send.data, own.size());
  co_await ring_gather_phase(me, gather);
  co_await me.finished();
}

}  // namespace tsprun::detail
