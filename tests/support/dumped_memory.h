// Finds what a core dump of a living process would hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tsprun::detail::test {

/// A mapping of a process, as /proc/PID/smaps tells it.
struct MappedRegion {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string mode;           ///< "rw-p"
  std::string name;           ///< a file, "[heap]", "[stack]" or nothing
  std::uint64_t touched = 0;  ///< bytes that are in memory
  bool dumped = true;         ///< not left out of core dumps ("dd" among its flags)

  bool writable() const { return mode.at(1) == 'w'; }
  bool shared() const { return mode.at(3) == 's'; }
};

std::vector<MappedRegion> mapped_regions(pid_t pid);

/// Returns, for each of some patterns, the regions that aren't left out of core dumps and hold its bytes now. The process must be
/// a descendant of this one, or this one. Makes no copy of a pattern.
std::vector<std::vector<MappedRegion>> dumped_regions_with(pid_t pid, std::span<const std::span<const std::byte>> patterns);
std::vector<MappedRegion> dumped_regions_with(pid_t pid, std::span<const std::byte> pattern);

}  // namespace tsprun::detail::test
