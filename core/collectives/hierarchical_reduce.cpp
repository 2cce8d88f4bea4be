// Hierarchical reductions and barrier: operations among the members of the node and of the rail, one after another.
#include "core/collectives/hierarchical.h"

#include <vector>

namespace tsprun::detail {

namespace {

/// Steps a part of the operation; returns true when the part is complete.
template <class Part>
bool step_part(Collective& operation, Engine& engine, Part& part) {
  if (part.step(engine)) return true;
  operation.set_missing_world(part.waiting_for());
  return false;
}

}  // namespace

// --- reduce_scatter ----------------------------------------------------------------------------------------------------------

HierarchicalReduceScatter::HierarchicalReduceScatter(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks)
    : Collective(call), send_(send), recv_(recv), chunks_(std::move(chunks)) {
  const Grid& grid = *group().grid;
  std::vector<std::size_t> counts;
  for (int node = 0; node < grid.nodes; ++node) counts.push_back(chunks_.count(grid.at(node, grid.rail)));
  rail_chunks_ = Chunks::listed(counts);
  sums_ = group().heap->allocate(rail_chunks_.total() * size_of(send_.dtype), "a node's sums in a reduce_scatter");
  // Made now, so that they allocate their memory now and not in the middle of the operation.
  begin_within();
  begin_across();
}

/// Makes the sub-operation that sums the chunks of the members of node `node_`.
void HierarchicalReduceScatter::begin_within() {
  const Grid& grid = *group().grid;
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;
  for (int rail = 0; rail < grid.rails; ++rail) {
    counts.push_back(chunks_.count(grid.at(node_, rail)));
    offsets.push_back(chunks_.offset(grid.at(node_, rail)));
  }
  const Buffer sums(sums_.bytes().data(), rail_chunks_.total(), send_.dtype);
  within_.emplace(among(grid.within, static_cast<std::uint64_t>(node_)), send_,
                  sums.slice(rail_chunks_.offset(node_), rail_chunks_.count(node_)), Chunks::placed(counts, offsets));
}

void HierarchicalReduceScatter::begin_across() {
  const Grid& grid = *group().grid;
  across_.emplace(among(grid.across, static_cast<std::uint64_t>(grid.nodes)),
                  ConstBuffer(sums_.bytes().data(), rail_chunks_.total(), send_.dtype), recv_, rail_chunks_);
}

bool HierarchicalReduceScatter::step(Engine& engine) {
  while (node_ < group().grid->nodes) {
    if (!within_) begin_within();
    if (!step_part(*this, engine, *within_)) return false;
    within_.reset();
    ++node_;
    engine.moved();
  }
  return step_part(*this, engine, *across_);
}

// --- all_reduce --------------------------------------------------------------------------------------------------------------

HierarchicalAllReduce::HierarchicalAllReduce(const Call& call, ConstBuffer send, Buffer recv)
    : Collective(call), send_(send), recv_(recv), chunks_(Chunks::balanced(group().grid->rails, send.count)) {
  const Grid& grid = *group().grid;
  const Buffer own = recv_.slice(chunks_.offset(grid.rail), chunks_.count(grid.rail));
  reduce_.emplace(among(grid.within, 0), send_, own, chunks_);
  across_.emplace(among(grid.across, 1), own, own);
  gather_.emplace(among(grid.within, 2), own, recv_, chunks_);
}

bool HierarchicalAllReduce::step(Engine& engine) {
  if (phase_ == Phase::reduce) {
    if (!step_part(*this, engine, *reduce_)) return false;
    phase_ = Phase::across;
  }
  if (phase_ == Phase::across) {
    if (!step_part(*this, engine, *across_)) return false;
    phase_ = Phase::gather;
  }
  return step_part(*this, engine, *gather_);
}

// --- barrier -----------------------------------------------------------------------------------------------------------------

HierarchicalBarrier::HierarchicalBarrier(const Call& call) : Collective(call) { within_.emplace(among(group().grid->within, 0)); }

bool HierarchicalBarrier::step(Engine& engine) {
  if (!across_) {
    if (!step_part(*this, engine, *within_)) return false;
    across_.emplace(among(group().grid->across, 1));
  }
  return step_part(*this, engine, *across_);
}

}  // namespace tsprun::detail
