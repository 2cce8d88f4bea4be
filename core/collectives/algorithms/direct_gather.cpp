// gather(_v), direct: every rank but the root sends it its chunk, and the root copies the chunks to their places as they arrive,
// in any order. One step, n−1 messages; the root receives every chunk but its own once.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

#include <optional>

namespace tsprun::detail {

Task direct_gather(Collective& me, const Arguments& call) {
  std::optional<GatherChunks> chunks;  // of the root
  Offer offer(me);                     // of the others
  if (me.rank() == call.root) chunks.emplace(me, call.recv, call.chunks, call.send.data);
  else offer.set(call.send.as_bytes(), call.send.bytes(), Readers::one);
  co_await me.turn();
  if (chunks) {
    co_await *chunks;
  } else {
    co_await offer.all_sent_to(call.root);
    co_await offer.drained();
  }
  co_await me.finished();
}

}  // namespace tsprun::detail
