// barrier, hierarchical, for groups that form a Grid: a direct barrier within each node, then one along each rail, the i-th ranks
// of all nodes. A message from a node means that all its members have arrived. Two steps; each rank sends a message to the other
// members of its node and of its rail.
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task hierarchical_barrier(Collective& me, const Arguments&) {
  const Grid& grid = *me.group().grid;
  Collective within(me.among(grid.within, 0), direct_barrier, {});
  Collective across(me.among(grid.across, 1), direct_barrier, {});
  co_await me.turn();
  co_await Subcollective(me, within);
  co_await Subcollective(me, across);
  co_await me.finished();
}

}  // namespace tsprun::detail
