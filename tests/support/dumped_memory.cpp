#include "tests/support/dumped_memory.h"

#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace tsprun::test {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

/// Returns whether the region holds the bytes, reading it in pieces that overlap by their length.
bool region_holds(const posix::UniqueFd& memory, const MappedRegion& region, std::span<const std::byte> bytes) {
  std::vector<std::byte> piece(kPiece + bytes.size());
  for (std::uint64_t at = region.begin; at < region.end; at += kPiece) {
    const std::size_t wanted = std::min<std::uint64_t>(piece.size(), region.end - at);
    const ssize_t got = ::pread(memory.get(), piece.data(), wanted, static_cast<off_t>(at));
    if (got > 0 && ::memmem(piece.data(), static_cast<std::size_t>(got), bytes.data(), bytes.size()) != nullptr) return true;
  }
  return false;
}

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

std::vector<MappedRegion> dumped_regions_with(pid_t pid, std::span<const std::byte> bytes) {
  const posix::UniqueFd memory(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<MappedRegion> found = mapped_regions(pid);
  std::erase_if(found, [&](const MappedRegion& region) {
    return !region.dumped || region.touched == 0 || region.mode.at(0) != 'r' || !region_holds(memory, region, bytes);
  });
  return found;
}

}  // namespace tsprun::test
