// reduce_scatter(_v), hierarchical, for groups that form a Grid: `rails` ranks on each of `nodes` nodes. A *rail* is the i-th
// rank of every node. For every node of the group, in turn, each node runs a direct reduce_scatter among its members of that
// node's chunks, so that member i gets its node's sums of the chunks of rail i; then a ring reduce_scatter along the rail adds
// the nodes' sums. A node's sums are rounded to the dtype, and the order of sums depends on which rank is on which node.
//
// A rank receives, within its node, rails−1 times the chunks of its rail, and along the rail each node's sum of all chunks of the
// rail but one: all ranks together receive as many bytes as by the other algorithms.
#include "core/collectives/registry.h"
#include "core/memory/heap.h"

#include <optional>
#include <vector>

namespace tsprun::detail {

namespace {

/// Returns the chunks of the members of the rail, by node, as they lie one after another.
Chunks chunks_of_rail(const Grid& grid, const Chunks& chunks) {
  std::vector<std::size_t> counts;
  for (int node = 0; node < grid.nodes; ++node) counts.push_back(chunks.count(grid.at(node, grid.rail)));
  return Chunks::listed(counts);
}

/// Returns the arguments of the sum, within this node, of the chunks of the members of node `node`.
Arguments within_node(const Grid& grid, const Arguments& call, int node, Buffer sum) {
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;
  for (int rail = 0; rail < grid.rails; ++rail) {
    counts.push_back(call.chunks.count(grid.at(node, rail)));
    offsets.push_back(call.chunks.offset(grid.at(node, rail)));
  }
  return {.send = call.send, .recv = sum, .chunks = Chunks::placed(counts, offsets)};
}

}  // namespace

Task hierarchical_reduce_scatter(Collective& me, const Arguments& call) {
  const Grid& grid = *me.group().grid;
  const DType dtype = call.send.dtype;
  const Chunks rail = chunks_of_rail(grid, call.chunks);
  const HeapBlock memory = me.group().heap->allocate(rail.total() * size_of(dtype), "a node's sums in a reduce_scatter");
  const Buffer sums(memory.bytes().data(), rail.total(), dtype);
  // The first parts are made now, so that they allocate their memory now and not in the middle of the operation.
  std::optional<Collective> within;
  within.emplace(me.among(grid.within, 0), direct_reduce_scatter,
                 within_node(grid, call, 0, sums.slice(rail.offset(0), rail.count(0))));
  Collective across(me.among(grid.across, static_cast<std::uint64_t>(grid.nodes)), ring_reduce_scatter,
                    {.send = sums, .recv = call.recv, .chunks = rail});
  co_await me.turn();
  for (int node = 0; node < grid.nodes; ++node) {
    if (node != 0) {
      within.emplace(me.among(grid.within, static_cast<std::uint64_t>(node)), direct_reduce_scatter,
                     within_node(grid, call, node, sums.slice(rail.offset(node), rail.count(node))));
    }
    co_await Subcollective(me, *within);
    within.reset();
    me.moved();
  }
  co_await Subcollective(me, across);
  co_await me.finished();
}

std::uint64_t hierarchical_reduce_scatter_received(const Group& group, const Arguments& call) {
  const Grid& grid = *group.grid;
  const Chunks rail = chunks_of_rail(grid, call.chunks);
  return static_cast<std::uint64_t>(grid.rails - 1) * rail.total() * size_of(call.send.dtype) +
         ring_reduce_scatter_received(grid.across, {.send = call.send, .recv = call.recv, .chunks = rail});
}

}  // namespace tsprun::detail
