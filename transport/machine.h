// Resources that this machine grants a job: cores, memory and limits, from the affinity mask, cgroups (v1 and v2), /proc and
// getrlimit(2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tsprun::detail::machine {

/// Returns the number of cores in this process's affinity mask, at least 1.
int allowed_cores();
/// Returns the smallest CPU quota of the cgroups that this process is in, in cores; 0: no quota.
double cpu_quota();
/// Returns the whole cores that this process and its children may use together: the smaller of the two above, at least 1.
int usable_cores();
/// Returns the whole cores that these processes (pids) may use together: the union of their affinity masks, bounded by the CPU
/// quota, at least 1. For ranks whose starter bound each to cores of its own. A process whose mask can't be read adds nothing;
/// if none can be read, returns usable_cores().
int usable_cores(std::span<const int> processes);

/// Returns the bytes of memory that a new job could use: MemAvailable, bounded by what is left under the limits of this
/// process's cgroups. Without /proc: the free memory that sysinfo(2) reports.
std::uint64_t available_memory();
/// Returns the machine's memory in bytes.
std::uint64_t total_memory();

/// Counts of processes that the kernel's out-of-memory killer has ended so far; 0 where the kernel doesn't count.
struct OutOfMemoryKills {
  std::uint64_t machine = 0;  ///< on the whole machine
  std::uint64_t cgroup = 0;   ///< in this process's cgroup, whoever was short of memory
  /// Times that a limit of this process's cgroup, or of one that can be seen around it, left no memory; none: not known (cgroup
  /// v1).
  std::optional<std::uint64_t> limit = std::nullopt;
};
/// Reads the present counts.
OutOfMemoryKills out_of_memory_kills();
/// Place where memory was short when the out-of-memory killer struck.
enum class Shortage : std::uint8_t { none, cgroup, either, machine };
/// Returns where memory was short between two readings of the counts; none: the killer didn't strike.
Shortage shortage(const OutOfMemoryKills& before, const OutOfMemoryKills& after);

/// Returns the NUMA node to which all processors belong that this thread may use; -1: there are several such nodes, the machine
/// has one, or it isn't known. `folder`: where Linux lists the nodes.
int numa_node_of_this_thread(const char* folder = "/sys/devices/system/node");

/// Returns the machine's name; "?" if it has none.
std::string host_name();
/// Returns Linux's identity of the machine's boot; empty if unknown.
std::string boot_identity();

/// Returns true if /proc is mounted. Without it stopped processes, leftover processes and cgroup limits can't be seen.
bool has_proc();

/// Bytes free, and bytes in all, of a file system.
struct Space {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
};
/// Returns the space of /dev/shm; 0, 0 if there is none.
Space shared_memory_file_system();

/// Return the soft limits of getrlimit(2): RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_MEMLOCK (bytes) and RLIMIT_AS (bytes);
/// UINT64_MAX: unlimited.
std::uint64_t limit_open_files();
/// Returns whether so many descriptors could be opened now, as far as `ulimit -n` goes.
bool can_open(int descriptors);
std::uint64_t limit_processes();
std::uint64_t limit_locked_memory();
std::uint64_t limit_address_space();

/// Returns the chosen value of /sys/kernel/mm/transparent_hugepage/shmem_enabled ("never", "advise", …); empty if unknown.
std::string huge_page_policy_for_shared_memory();

}  // namespace tsprun::detail::machine
