// all_reduce, hierarchical, for groups that form a Grid: `rails` ranks on each of `nodes` nodes. A *rail* is the i-th rank of
// every node. The buffer is cut into one chunk per rail: a direct reduce_scatter within the node leaves a node's sum of chunk i
// with its i-th rank, an all_reduce along each rail adds the nodes' sums (a tree, or a ring where latencies weigh less than
// bytes), and a direct all_gather within the node spreads the results. The order of sums depends on which rank is on which node.
//
// A rank receives, of its chunk, rails−1 times the whole within the node and what the all_reduce of the nodes brings it, and then
// all other chunks once: all ranks together receive as many bytes as by the other algorithms.
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task hierarchical_all_reduce(Collective& me, const Arguments& call) {
  const Grid& grid = *me.group().grid;
  const Chunks chunks = Chunks::balanced(grid.rails, call.send.count);
  const Buffer own = call.recv.slice(chunks.offset(grid.rail), chunks.count(grid.rail));
  Collective reduce(me.among(grid.within, 0), direct_reduce_scatter, {.send = call.send, .recv = own, .chunks = chunks});
  Start* const along_rail = is_tree_faster(own.bytes(), grid.nodes) ? tree_all_reduce : ring_all_reduce;
  Collective across(me.among(grid.across, 1), along_rail, {.send = own, .recv = own});
  Collective gather(me.among(grid.within, 2), direct_all_gather, {.send = own, .recv = call.recv, .chunks = chunks});
  co_await me.turn();
  co_await Subcollective(me, reduce);
  co_await Subcollective(me, across);
  co_await Subcollective(me, gather);
  co_await me.finished();
}

std::uint64_t hierarchical_all_reduce_received(const Group& group, const Arguments& call) {
  const Grid& grid = *group.grid;
  const std::size_t own = Chunks::balanced(grid.rails, call.send.count).count(grid.rail);
  const std::uint64_t within = static_cast<std::uint64_t>(grid.rails - 1) * own + call.send.count - own;
  const Buffer sum(call.recv.data, own, call.recv.dtype);
  Received* const along_rail = is_tree_faster(sum.bytes(), grid.nodes) ? tree_all_reduce_received : ring_all_reduce_received;
  return within * size_of(call.send.dtype) + along_rail(grid.across, {.send = sum, .recv = sum});
}

}  // namespace tsprun::detail
