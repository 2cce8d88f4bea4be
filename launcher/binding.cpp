// Builds hwloc's topology without plugins, and deals out cores to ranks.
#include "launcher/binding.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <memory>
#include <sched.h>

namespace tsprun::detail::launcher {

namespace {

template <auto destroy>
struct DestroyBy {
  void operator()(auto* handle) const { destroy(handle); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyBy<hwloc_topology_destroy>>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, DestroyBy<hwloc_bitmap_free>>;

/// Makes a topology without loading hwloc's plugins, which know devices and XML: that takes three times as long as all the rest.
Topology make_topology() {
  constexpr const char* kPlugins = "HWLOC_PLUGINS_PATH";
  const bool skip = std::getenv(kPlugins) == nullptr;
  if (skip) ::setenv(kPlugins, "", 1);
  hwloc_topology_t topology = nullptr;
  const bool made = hwloc_topology_init(&topology) == 0;
  if (skip) ::unsetenv(kPlugins);
  return Topology(made ? topology : nullptr);
}

/// Returns whether the system tells this process its cores. Where a filter of system calls forbids that, hwloc asks for ever.
bool knows_affinity() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 || errno == EINVAL;  // EINVAL: it has more than fit
}

/// Returns what this process may use of the machine; null if it can't be found out.
Topology load(const std::string& machine, const std::string& allowed) {
  if (machine.empty() && !knows_affinity()) return nullptr;
  Topology topology = make_topology();
  if (!topology) return nullptr;
  hwloc_topology_set_all_types_filter(topology.get(), HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology.get(), HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (machine.empty()) {
    hwloc_topology_set_components(topology.get(), HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");  // /sys says the same sooner
    hwloc_topology_set_flags(topology.get(), HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  } else if (hwloc_topology_set_synthetic(topology.get(), machine.c_str()) != 0) {
    return nullptr;
  }
  if (hwloc_topology_load(topology.get()) != 0) return nullptr;
  if (allowed.empty()) return topology;
  const Bitmap cpus(hwloc_bitmap_alloc());
  const bool restricted =
      hwloc_bitmap_list_sscanf(cpus.get(), allowed.c_str()) == 0 && hwloc_topology_restrict(topology.get(), cpus.get(), 0) == 0;
  return restricted ? std::move(topology) : nullptr;
}

/// Returns the number of objects of a type; 0 if the machine doesn't say.
std::size_t count(const Topology& topology, hwloc_obj_type_t type) {
  return static_cast<std::size_t>(std::max(0, hwloc_get_nbobjs_by_type(topology.get(), type)));
}

}  // namespace

std::vector<cpu_set_t> cores_of_ranks(int ranks, int threads, const std::string& machine, const std::string& allowed) {
  const Topology topology = load(machine, allowed);
  if (!topology) return {};
  const auto all = static_cast<std::size_t>(ranks);
  const std::size_t wanted = all * static_cast<std::size_t>(threads);
  const hwloc_obj_type_t unit = wanted <= count(topology, HWLOC_OBJ_CORE) ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  const std::size_t units = count(topology, unit);
  if (units == 0) return {};
  const std::size_t width = std::min(static_cast<std::size_t>(threads), units);
  const Bitmap cpus(hwloc_bitmap_alloc());
  std::vector<cpu_set_t> sets(all);
  for (std::size_t rank = 0; rank < all; ++rank) {
    const std::size_t first = wanted <= units ? rank * units / all : rank % (units / width) * width;
    hwloc_bitmap_zero(cpus.get());
    for (std::size_t i = first; i < first + width; ++i) {
      const hwloc_obj_t object = hwloc_get_obj_by_type(topology.get(), unit, static_cast<unsigned>(i));
      hwloc_bitmap_or(cpus.get(), cpus.get(), object->cpuset);
    }
    if (hwloc_cpuset_to_glibc_sched_affinity(topology.get(), cpus.get(), &sets[rank], sizeof(cpu_set_t)) != 0) return {};
  }
  return sets;
}

}  // namespace tsprun::detail::launcher
