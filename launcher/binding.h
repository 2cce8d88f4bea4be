// Chooses the cores to which ranks are pinned, from hwloc's view of the machine. Only the launcher loads hwloc, once for all
// ranks, which takes about a millisecond.
#pragma once

#include <sched.h>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the CPUs of each of `ranks` ranks that start here and compute with `threads` threads each, within those that this
/// process may use (affinity, cgroups). A rank gets as many whole cores, with all their hardware threads, as it has threads,
/// neighbours in the order of the machine, and ranks are spread evenly over cores, so also over NUMA nodes. If there are too few
/// cores, ranks get single hardware threads; if there are too few of these, too, several ranks get the same. An empty list: hwloc
/// can't tell, and ranks should not be pinned. `machine` describes another machine, as hwloc's synthetic topologies do, of which
/// the CPUs `allowed` may be used, as hwloc lists them ("0-3,6"; empty: all).
std::vector<cpu_set_t> cores_of_ranks(int ranks, int threads, const std::string& machine = {}, const std::string& allowed = {});

}  // namespace tsprun::detail::launcher
