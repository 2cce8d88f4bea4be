// all_gather(_v), direct: every rank sends its chunk, its part of the result, to each of the n−1 others, and copies theirs to
// their places as they arrive, in any order. One step; n−1 messages sent by each rank, and each receives every byte that isn't
// its own once.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task direct_all_gather(Collective& me, const Arguments& call) {
  Offer offer(me, call.send.as_bytes(), call.send.bytes(), Readers::several);
  GatherChunks chunks(me, call.recv, call.chunks, call.send.data);
  SendToPeers sends(me, offer, 0, call.send.bytes());
  co_await me.turn();
  co_await offer.prepared();
  co_await all_of(sends, chunks);
  co_await offer.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
