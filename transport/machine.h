// What this machine lets a job have: cores, memory, limits. Read from affinity, cgroups (v1 and v2), /proc and getrlimit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tsprun::machine {

/// Cores in this process's affinity mask.
int allowed_cores();
/// CPU quota of the cgroups this process is in, in cores; 0: none.
double cpu_quota();
/// Whole cores that this process and its children may use together: the smaller of the two above, at least 1.
int usable_cores();
/// The same for processes whose starter gave each cores of its own: those that any of them may use. One that can't be looked at
/// counts for none.
int usable_cores(std::span<const int> processes);

/// Bytes of memory that a new job could use: MemAvailable, bounded by what is left under the cgroups' limits.
std::uint64_t available_memory();
std::uint64_t total_memory();

/// How many processes the kernel's out-of-memory killer has ended so far; 0 where the kernel doesn't count.
struct OutOfMemoryKills {
  std::uint64_t machine = 0;  ///< on the whole machine
  std::uint64_t cgroup = 0;   ///< in this process's cgroup
};
OutOfMemoryKills out_of_memory_kills();

/// /proc is mounted: without it neither stopped processes nor strays nor limits of cgroups can be seen.
bool has_proc();

/// "bytes free of bytes" in /dev/shm; 0, 0 if there is none.
struct Space {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
};
Space shared_memory_file_system();

/// Soft limits; UINT64_MAX: unlimited.
std::uint64_t limit_open_files();
std::uint64_t limit_processes();
std::uint64_t limit_locked_memory();
std::uint64_t limit_address_space();

/// The text of /sys/kernel/mm/transparent_hugepage/shmem_enabled's chosen value ("never", "advise", …); empty if unknown.
std::string huge_page_policy_for_shared_memory();

/// Processor model and highest vector level, for reports: "avx512", "avx2", "sse4", "baseline".
std::string vector_level();

}  // namespace tsprun::machine
