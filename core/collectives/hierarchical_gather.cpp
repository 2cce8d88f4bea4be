// Hierarchical all_gather and broadcast: each is a table of which parts go from which rank to which, carried out by a Relay.
#include "core/collectives/hierarchical.h"

namespace tsprun::detail {

// --- all_gather --------------------------------------------------------------------------------------------------------------

HierarchicalAllGather::HierarchicalAllGather(const Call& call, ConstBuffer send, Buffer recv, const Chunks& chunks)
    : Collective(call), send_(send), own_place_(recv.slice(chunks.offset(rank()), chunks.count(rank())).as_bytes()) {
  const Grid& grid = *group().grid;
  const std::size_t element = size_of(recv.dtype);
  std::vector<Relay::Part> parts;  // the chunks
  for (int r = 0; r < size(); ++r) parts.push_back({chunks.offset(r) * element, chunks.count(r) * element});
  relay_.set(*this, recv.as_bytes(), std::move(parts));
  // A rank gets the chunks of its rail in this order: its own, that of the previous node, the one before that, …
  const auto rail_of = [&grid](int node, int rail, int count) {
    std::vector<int> chunks_of_rail;
    for (int hop = 0; hop < count; ++hop) chunks_of_rail.push_back(grid.at(modulo(node - hop, grid.nodes), rail));
    return chunks_of_rail;
  };
  const int before = modulo(grid.node - 1, grid.nodes);
  const int after = modulo(grid.node + 1, grid.nodes);
  relay_.send_to(grid.at(after, grid.rail), rail_of(grid.node, grid.rail, grid.nodes - 1));
  relay_.expect_from(grid.at(before, grid.rail), rail_of(before, grid.rail, grid.nodes - 1));
  for (int i = 1; i < grid.rails; ++i) {
    const int rail = modulo(grid.rail + i, grid.rails);
    relay_.send_to(grid.at(grid.node, rail), rail_of(grid.node, grid.rail, grid.nodes));
    relay_.expect_from(grid.at(grid.node, rail), rail_of(grid.node, rail, grid.nodes));
  }
}

bool HierarchicalAllGather::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  const std::size_t budget_before = budget;
  const bool own = copy_some(own_place_.data(), send_.data, send_.bytes(), own_copied_, budget);
  relay_.give(rank(), own_copied_);
  if (budget != budget_before) engine.moved();
  return relay_.step(*this, engine, budget) && own;
}

// --- broadcast ---------------------------------------------------------------------------------------------------------------

HierarchicalBroadcast::HierarchicalBroadcast(const Call& call, Buffer buffer, int root) : Collective(call) {
  const Grid& grid = *group().grid;
  const Chunks chunks = Chunks::balanced(grid.rails, buffer.count);  // one per rail
  const std::size_t element = size_of(buffer.dtype);
  std::vector<Relay::Part> parts;
  for (int i = 0; i < grid.rails; ++i) parts.push_back({chunks.offset(i) * element, chunks.count(i) * element});
  relay_.set(*this, buffer.as_bytes(), std::move(parts));
  const int root_node = grid.row_of(root);
  const int hop = modulo(grid.node - root_node, grid.nodes);
  const int after = modulo(grid.node + 1, grid.nodes);
  // The root sends a member of its node first the part that the member forwards along its rail.
  const auto all_from = [&grid](int rail) {
    std::vector<int> order;
    for (int i = 0; i < grid.rails; ++i) order.push_back(modulo(rail + i, grid.rails));
    return order;
  };
  if (hop < grid.nodes - 1) relay_.send_to(grid.at(after, grid.rail), {grid.rail});
  if (hop != 0) relay_.expect_from(grid.at(modulo(grid.node - 1, grid.nodes), grid.rail), {grid.rail});
  if (hop == 0 && rank() != root) relay_.expect_from(root, all_from(grid.rail));
  for (int i = 1; i < grid.rails; ++i) {
    const int rail = modulo(grid.rail + i, grid.rails);
    const int neighbour = grid.at(grid.node, rail);
    if (rank() == root) relay_.send_to(neighbour, all_from(rail));
    if (hop == 0) continue;
    relay_.send_to(neighbour, {grid.rail});
    relay_.expect_from(neighbour, {rail});
  }
  if (rank() != root) return;
  for (int i = 0; i < grid.rails; ++i) relay_.give(i, chunks.count(i) * element);
}

bool HierarchicalBroadcast::step(Engine& engine) { return relay_.step(*this, engine, kSegmentBytes); }

}  // namespace tsprun::detail
