// broadcast, ring: the buffer travels in segments of kSegmentBytes along the chain of ranks from the root to the right. Each rank
// receives a segment from the left into its place and sends it on to the right from there, while the left sends the next one.
// n−2 steps more than there are segments; each rank but the root receives the buffer once.
#include "core/collectives/algorithms/ring.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task ring_broadcast(Collective& me, const Arguments& call) {
  const std::span<std::byte> buffer = call.recv.as_bytes();
  const bool is_first = me.rank() == call.root;
  const bool is_last = me.right() == call.root;
  Landing landing(me, buffer);
  Offer offer(me, buffer, std::min(buffer.size(), kSegmentBytes), Readers::one);
  co_await me.turn();
  std::uint32_t step = 0;
  for (std::size_t at = 0; at < buffer.size() || step == 0; at += kSegmentBytes, ++step) {
    if (step != 0) co_await me.pause();
    const std::span<std::byte> segment = buffer.subspan(at, std::min(kSegmentBytes, buffer.size() - at));
    if (!is_first) co_await Arrival(landing, me.left(), step, segment, step + 1);
    if (is_last) continue;
    co_await offer.prepared(at, segment.size());
    co_await offer.sent(me.right(), step, at, segment.size());
  }
  co_await offer.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
