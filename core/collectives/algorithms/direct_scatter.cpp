// scatter(_v), direct: the root sends each of the n−1 others its chunk, which that rank copies, and copies its own. One step, n−1
// messages; each rank but the root receives its chunk once.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task direct_scatter(Collective& me, const Arguments& call) {
  const std::size_t element = size_of(call.recv.dtype);
  const bool is_root = me.rank() == call.root;
  Landing landing(me, call.recv.as_bytes());
  Offer offer(me);
  if (is_root && me.peers() > 0) offer.set(call.send.as_bytes(), call.chunks.largest() * element, Readers::one);
  co_await me.turn();
  if (is_root) {
    co_await SendToPeers(me, offer, 0, call.chunks, element);
    co_await LocalCopy(me, call.recv.data, call.send.data + call.chunks.offset(me.rank()) * element, call.recv.bytes());
    co_await offer.drained();
  } else {
    co_await Arrival(landing, call.root, 0, call.recv.as_bytes());
  }
  co_await me.finished();
}

}  // namespace tsprun::detail
