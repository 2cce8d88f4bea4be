// barrier, direct: every rank sends an empty message to each of the n−1 others. A rank that has a message from every other knows
// that all have arrived. One step; n−1 messages sent by each rank.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task direct_barrier(Collective& me, const Arguments&) {
  Offer nothing(me);
  SendToPeers sends(me, nothing, 0, 0);
  PeerMessages messages(me, 0, 0, nullptr);
  co_await me.turn();
  co_await all_of(sends, messages);
  co_await me.finished();
}

}  // namespace tsprun::detail
