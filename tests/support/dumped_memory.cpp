// Reads the regions of /proc/PID/smaps that dumps hold, and searches them for patterns.
#include "tests/support/dumped_memory.h"

#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace tsprun::detail::test {

namespace {

/// Bytes that are read at a time. Pieces overlap, so that no pattern is cut.
constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kOverlap = 4096;

}  // namespace

std::vector<MappedRegion> mapped_regions(pid_t pid) {
  std::vector<MappedRegion> regions;
  MappedRegion region;
  std::ifstream maps(fmt::format("/proc/{}/smaps", pid));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (const std::size_t dash = first.find('-'); dash != std::string::npos && first.back() != ':') {
      region = {};
      std::string skip;
      words >> region.mode >> skip >> skip >> skip;
      region.begin = std::stoull(first.substr(0, dash), nullptr, 16);
      region.end = std::stoull(first.substr(dash + 1), nullptr, 16);
      std::getline(words >> std::ws, region.name);
    } else if (first == "Rss:" || first == "Swap:") {
      std::uint64_t kilobytes = 0;
      words >> kilobytes;
      region.touched += kilobytes * 1024;
    } else if (first == "VmFlags:") {
      region.dumped = line.find(" dd") == std::string::npos;
      regions.push_back(region);
    }
  }
  return regions;
}

std::vector<std::vector<MappedRegion>> dumped_regions_with(pid_t pid, std::span<const std::span<const std::byte>> patterns) {
  std::vector<std::vector<MappedRegion>> found(patterns.size());
  const posix::UniqueFd memory(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> piece(kPiece + kOverlap);
  for (const MappedRegion& region : mapped_regions(pid)) {
    if (!region.dumped || region.touched == 0 || region.mode.at(0) != 'r') continue;
    for (std::uint64_t at = region.begin; at < region.end; at += kPiece) {
      const std::size_t wanted = std::min<std::uint64_t>(piece.size(), region.end - at);
      const ssize_t got = ::pread(memory.get(), piece.data(), wanted, static_cast<off_t>(at));
      if (got <= 0) continue;
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        const bool here =
            ::memmem(piece.data(), static_cast<std::size_t>(got), patterns[i].data(), patterns[i].size()) != nullptr;
        if (here && (found[i].empty() || found[i].back().begin != region.begin)) found[i].push_back(region);
      }
    }
  }
  return found;
}

std::vector<MappedRegion> dumped_regions_with(pid_t pid, std::span<const std::byte> pattern) {
  return dumped_regions_with(pid, std::span(&pattern, 1)).front();
}

}  // namespace tsprun::detail::test
