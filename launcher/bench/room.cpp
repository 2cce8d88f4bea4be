// Counts the bytes of buffers and of payloads in flight, and compares them with the heap, the machine and --mem-per-rank.
#include "launcher/bench/room.h"

#include "core/collectives/choice.h"
#include "launcher/bench/measure.h"
#include "launcher/refuse.h"
#include "launcher/values.h"
#include "transport/machine.h"
#include "transport/shm/lane.h"
#include "transport/shm/node_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <string>

namespace tsprun::detail::bench {

using launcher::format_size;
using launcher::GlobalOptions;
using launcher::refuse;

namespace {

/// Messages that may be in flight on a lane, each with a copy of its small payload in the sender's heap.
constexpr std::uint64_t kUnderWay = shm::kSlots;
constexpr std::uint64_t kSmallestCopy = 1024;

std::string whole_mebibytes(std::uint64_t bytes) {
  return bytes < (std::uint64_t{10} << 20) ? fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20))
                                           : fmt::format("{} MiB", (bytes + (1 << 20) - 1) >> 20);
}

/// Returns the bytes that a rank's heap must hold: the buffers, and copies of small payloads in flight, whose sizes are rounded
/// up to powers of two. UINT64_MAX if the sum overflows.
std::uint64_t heap_need(std::span<const Case> cases) {
  const BufferBytes buffers = buffers_for(in_both_places(cases));
  std::set<std::uint64_t> copies = {kSmallestCopy};
  for (const Case& each : cases) {
    const auto add = [&](std::uint64_t payload) {
      if (payload <= kStagedBytes) copies.insert(std::bit_ceil(std::max(kSmallestCopy, payload)));
    };
    add(each.bytes);
    add(each.count() * size_of(each.dtype));
    if (each.kind != Kind::all_to_all_v) continue;
    for (const std::size_t part : each.parts_of(0)) add(part * size_of(each.dtype));
  }
  const std::uint64_t beside = kUnderWay * std::accumulate(copies.begin(), copies.end(), std::uint64_t{0});
  const bool countable = buffers.input < UINT64_MAX / 4 && buffers.output < UINT64_MAX / 4;
  return countable ? buffers.total() + beside : UINT64_MAX;
}

/// Most bytes that one rank may take, and which option or limit says so.
struct Room {
  std::uint64_t bytes;
  std::string why;
};

Room room_for_rank(const GlobalOptions& global) {
  const auto ranks = static_cast<std::uint64_t>(global.ranks);
  const std::uint64_t available = machine::available_memory();
  Room room{shm::default_heap_bytes(), fmt::format("a heap holds {}", whole_mebibytes(shm::default_heap_bytes()))};
  if (available != 0 && available / ranks < room.bytes) {
    room = {available / ranks,
            fmt::format("{} are available for {} rank{}", whole_mebibytes(available), ranks, ranks == 1 ? "" : "s")};
  }
  if (global.mem_per_rank != 0 && global.mem_per_rank < room.bytes) {
    room = {global.mem_per_rank,
            fmt::format("--mem-per-rank {} allows {}", global.mem_per_rank.text, whole_mebibytes(global.mem_per_rank))};
  }
  return room;
}

}  // namespace

void check_room(const GlobalOptions& global, std::span<const Kind> kinds, std::span<const std::uint64_t> sizes, DType dtype,
                std::string_view option) {
  const Room room = room_for_rank(global);
  const auto need_for = [&](std::span<const std::uint64_t> some) {
    return heap_need(make_cases(kinds, some, dtype, global.ranks));
  };
  const std::uint64_t need = need_for(sizes);
  if (need <= room.bytes) return;
  const std::uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  std::uint64_t nearest = 1;
  for (std::uint64_t twice = 2; twice <= largest && need_for({&twice, 1}) <= room.bytes; twice *= 2) {
    nearest = twice;
    if (twice > UINT64_MAX / 2) break;
  }
  const auto ranks = static_cast<std::uint64_t>(global.ranks);
  const std::string together = need > UINT64_MAX / ranks ? "more than 2^64 bytes" : whole_mebibytes(need * ranks);
  refuse(fmt::format("{} {}: every rank needs {} ({} together), {}; try {} {}", option, format_size(largest),
                     whole_mebibytes(need), together, room.why, option, format_size(nearest)));
}

}  // namespace tsprun::detail::bench
