// broadcast, hierarchical, for groups that form a Grid: `rails` ranks on each of `nodes` nodes. A *rail* is the i-th rank of
// every node. The buffer is cut into one part per rail. The root sends all parts to the members of its node, and each of them
// sends its part along its rail; on the other nodes, the rank that gets a part sends it to the other members of its node.
//
// nodes steps between nodes and within them; each rank but the root receives the buffer once, and each byte crosses between two
// nodes once.
#include "core/collectives/algorithms/relay.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

namespace {

/// Tells the relay which parts go from which rank to which.
void route_parts(Collective& me, Relay& relay, int root) {
  const Grid& grid = *me.group().grid;
  const int hop = grid.node_after(grid.node, -grid.row_of(root));  // nodes that the buffer passes before this one
  // The root sends a member of its node first the part that the member forwards along its rail.
  const auto all_from = [&grid](int rail) {
    Relay::Order order;
    for (int i = 0; i < grid.rails; ++i) order.push_back((rail + i) % grid.rails);
    return order;
  };
  if (hop < grid.nodes - 1) relay.send_to(grid.at(grid.node_after(grid.node, 1), grid.rail), {grid.rail});
  if (hop != 0) relay.expect_from(grid.at(grid.node_after(grid.node, -1), grid.rail), {grid.rail});
  if (hop == 0 && me.rank() != root) relay.expect_from(root, all_from(grid.rail));
  for (int i = 1; i < grid.rails; ++i) {
    const int rail = (grid.rail + i) % grid.rails;
    const int neighbour = grid.at(grid.node, rail);
    if (me.rank() == root) relay.send_to(neighbour, all_from(rail));
    if (hop == 0) continue;
    relay.send_to(neighbour, {grid.rail});
    relay.expect_from(neighbour, {rail});
  }
}

}  // namespace

Task hierarchical_broadcast(Collective& me, const Arguments& call) {
  const int rails = me.group().grid->rails;
  const Chunks chunks = Chunks::balanced(rails, call.recv.count);  // one per rail
  const std::size_t element = size_of(call.recv.dtype);
  Relay::Parts parts;
  for (int i = 0; i < rails; ++i) parts.push_back({chunks.offset(i) * element, chunks.count(i) * element});
  Relay relay(me, call.recv.as_bytes(), std::move(parts), Relay::kSegmentsOfOne);
  route_parts(me, relay, call.root);
  for (int i = 0; me.rank() == call.root && i < rails; ++i) relay.give(i, chunks.count(i) * element);
  co_await me.turn();
  co_await relay;
  co_await relay.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
