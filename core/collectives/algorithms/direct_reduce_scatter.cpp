// reduce_scatter(_v), direct: every rank's buffer has a chunk for each rank. It sends each of the n−1 others the chunk for it,
// and sums the chunks for itself straight from the others' memory, in the canonical order: first the ranks after it, cyclically,
// then its own part. One step; n−1 messages sent by each rank, and each receives n−1 times its own chunk.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task direct_reduce_scatter(Collective& me, const Arguments& call) {
  const std::size_t element = size_of(call.send.dtype);
  Offer offer(me, call.send.as_bytes(), call.chunks.largest() * element, Readers::one);
  PeerSum inputs(me, call.send.dtype, call.chunks.count(me.rank()), 0);
  SendToPeers sends(me, offer, 0, call.chunks, element);
  co_await me.turn();
  co_await all_of(sends, inputs);
  co_await SumAll(me, inputs, call.send.data + call.chunks.offset(me.rank()) * element, call.recv.data);
  co_await offer.drained();
  co_await me.finished();
}

std::uint64_t direct_reduce_scatter_received(const Group& group, const Arguments& call) {
  return static_cast<std::uint64_t>(group.size() - 1) * call.chunks.count(group.rank) * size_of(call.send.dtype);
}

}  // namespace tsprun::detail
