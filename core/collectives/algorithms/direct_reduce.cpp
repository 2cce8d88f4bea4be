// reduce, direct: every rank but the root sends it the whole buffer, and the root sums them straight from the others' memory, in
// the order of the ranks after it, its own part last. One step, n−1 messages; the root receives n−1 buffers.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

#include <optional>

namespace tsprun::detail {

Task direct_reduce(Collective& me, const Arguments& call) {
  std::optional<PeerSum> inputs;  // of the root
  Offer offer(me);                // of the others
  if (me.rank() == call.root) inputs.emplace(me, call.send.dtype, call.send.count, 0U);
  else offer.set(call.send.as_bytes(), call.send.bytes(), Readers::one);
  co_await me.turn();
  if (inputs) {
    co_await *inputs;
    co_await SumAll(me, *inputs, call.send.data, call.recv.data);
  } else {
    co_await offer.all_sent_to(call.root);
    co_await offer.drained();
  }
  co_await me.finished();
}

std::uint64_t direct_reduce_received(const Group& group, const Arguments& call) {
  return group.rank == call.root ? static_cast<std::uint64_t>(group.size() - 1) * call.send.bytes() : 0;
}

}  // namespace tsprun::detail
