// all_gather(_v), hierarchical, for groups that form a Grid: `rails` ranks on each of `nodes` nodes. A *rail* is the i-th rank of
// every node. Chunks travel along their rail, each node passing them to the next; a rank that gets a chunk also sends it to the
// other members of its node. So every byte crosses between two nodes once, and all rails work side by side.
//
// nodes−1 steps between nodes, each followed by one within; a rank receives every byte that isn't its own once.
#include "core/collectives/algorithms/relay.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

/// The copy of the own chunk to its place, from where the relay forwards it.
class RelayedCopy {
 public:
  RelayedCopy(Relay& relay, int part, LocalCopy copy) : relay_(relay), part_(part), copy_(copy) {}
  bool poll() {
    const bool done = copy_.poll();
    relay_.give(part_, copy_.copied());
    return done;
  }

 private:
  Relay& relay_;
  int part_;
  LocalCopy copy_;
};

namespace {

/// Returns the table of which chunks go from which rank to which.
void route_chunks(Collective& me, Relay& relay) {
  const Grid& grid = *me.group().grid;
  // A rank gets the chunks of its rail in this order: its own, that of the previous node, the one before that, …
  const auto rail_of = [&grid](int node, int rail, int count) {
    Relay::Order chunks_of_rail;
    for (int hop = 0; hop < count; ++hop) chunks_of_rail.push_back(grid.at(grid.node_after(node, -hop), rail));
    return chunks_of_rail;
  };
  const int before = grid.node_after(grid.node, -1);
  const int after = grid.node_after(grid.node, 1);
  relay.send_to(grid.at(after, grid.rail), rail_of(grid.node, grid.rail, grid.nodes - 1));
  relay.expect_from(grid.at(before, grid.rail), rail_of(before, grid.rail, grid.nodes - 1));
  for (int i = 1; i < grid.rails; ++i) {
    const int rail = (grid.rail + i) % grid.rails;
    relay.send_to(grid.at(grid.node, rail), rail_of(grid.node, grid.rail, grid.nodes));
    relay.expect_from(grid.at(grid.node, rail), rail_of(grid.node, rail, grid.nodes));
  }
}

}  // namespace

Task hierarchical_all_gather(Collective& me, const Arguments& call) {
  const Chunks& chunks = call.chunks;
  const std::size_t element = size_of(call.recv.dtype);
  Relay::Parts parts;
  for (int r = 0; r < me.size(); ++r) parts.push_back({chunks.offset(r) * element, chunks.count(r) * element});
  Relay relay(me, call.recv.as_bytes(), std::move(parts), Relay::kSegmentsAmongOthers);
  route_chunks(me, relay);
  std::byte* own_place = call.recv.data + chunks.offset(me.rank()) * element;
  RelayedCopy own(relay, me.rank(), LocalCopy(me, own_place, call.send.data, call.send.bytes()));
  co_await me.turn();
  co_await all_of(own, relay);
  co_await relay.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
