// broadcast, direct: the root sends the whole buffer to each of the n−1 others, which copy it. One step, n−1 messages; each rank
// but the root receives the buffer once.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task direct_broadcast(Collective& me, const Arguments& call) {
  const std::size_t bytes = call.recv.bytes();
  const bool is_root = me.rank() == call.root;
  Landing landing(me, call.recv.as_bytes());
  Offer offer(me);
  if (is_root && me.peers() > 0) offer.set(call.recv.as_bytes(), bytes, Readers::several);
  co_await me.turn();
  if (is_root) {
    co_await offer.prepared();
    co_await SendToPeers(me, offer, 0, bytes);
    co_await offer.drained();
  } else {
    co_await Arrival(landing, call.root, 0, call.recv.as_bytes());
  }
  co_await me.finished();
}

}  // namespace tsprun::detail
