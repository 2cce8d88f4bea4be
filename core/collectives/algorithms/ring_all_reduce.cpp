// all_reduce, ring: the buffer is cut into n chunks. A ring reduce_scatter leaves the sum of chunk p with rank p, then a ring
// all_gather takes it to all others. 2(n−1) steps a round; each rank receives sums of every chunk but its left neighbour's, and
// then every chunk but its own.
#include "core/collectives/algorithms/ring.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task ring_all_reduce(Collective& me, const Arguments& call) {
  const Chunks chunks = Chunks::balanced(me.size(), call.send.count);
  RingReducePhase reduce(me, call.send, chunks, call.recv.data + chunks.offset(me.rank()) * size_of(call.recv.dtype));
  RingGatherPhase gather(me, call.recv, chunks, reduce.hops());
  co_await me.turn();
  co_await ring_reduce_phase(me, reduce);
  co_await ring_gather_phase(me, gather);
  co_await me.finished();
}

std::uint64_t ring_all_reduce_received(const Group& group, const Arguments& call) {
  Arguments reduced = call;
  reduced.chunks = Chunks::balanced(group.size(), call.send.count);
  const std::uint64_t gathered = call.send.count - reduced.chunks.count(group.rank);
  return ring_reduce_scatter_received(group, reduced) + gathered * size_of(call.recv.dtype);
}

}  // namespace tsprun::detail
