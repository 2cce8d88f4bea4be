// all_to_all(_v), direct: every rank's buffer has a chunk for each rank. It sends each of the n−1 others the chunk for it, and
// copies the chunks for itself to their places as they arrive, in any order. One step; n−1 messages sent by each rank, and no
// byte is sent twice.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task direct_all_to_all(Collective& me, const Arguments& call) {
  const std::size_t element = size_of(call.send.dtype);
  Offer offer(me, call.send.as_bytes(), call.send_chunks.largest() * element, Readers::one);
  GatherChunks chunks(me, call.recv, call.chunks, call.send.data + call.send_chunks.offset(me.rank()) * element);
  SendToPeers sends(me, offer, 0, call.send_chunks, element);
  co_await me.turn();
  co_await all_of(sends, chunks);
  co_await offer.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
