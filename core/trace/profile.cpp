// Finds the row of an event, and adds to it.
#include "core/trace/profile.h"

#include <bit>
#include <functional>

namespace tsprun::detail {

namespace {

// Places in the sizes of attention.
constexpr std::size_t kQueries = 1;
constexpr std::size_t kKeys = 2;

}  // namespace

std::size_t Profile::Hash::operator()(
    const std::tuple<std::string_view, std::string_view, std::array<std::uint32_t, 5>>& key) const {
  const auto& [name, matrix, sizes] = key;
  std::size_t hash = std::hash<std::string_view>()(name) ^ (std::hash<std::string_view>()(matrix) << 1U);
  for (const std::uint32_t size : sizes) hash = (hash ^ size) * 0x100000001b3;  // as FNV-1a
  return hash;
}

void Profile::add(const TraceEvent& event) {
  if (event.op || event.row != TraceEvent::kCompute) return;
  const std::uint64_t ns = event.end_ns - event.begin_ns;
  if (event.name == "wait") {
    const Op op = event.waited_for < 0 ? Op::barrier : event.waited_op;
    const auto [at, is_new] = wait_places_.try_emplace({op, event.waited_for}, waits_.size());
    if (is_new) waits_.push_back({.op = op, .rank = event.waited_for});
    Wait& wait = waits_[at->second];
    ++wait.calls;
    wait.ns += ns;
    return;
  }
  std::array<std::uint32_t, 5> sizes = event.sizes;
  if (event.name == "flash forward" && sizes[kQueries] == 1) sizes[kKeys] = std::bit_ceil(sizes[kKeys]);
  const auto [at, is_new] = places_.try_emplace({event.name, event.matrix, sizes}, kernels_.size());
  if (is_new) kernels_.push_back({.name = event.name, .matrix = event.matrix, .sizes = sizes});
  Kernel& kernel = kernels_[at->second];
  ++kernel.calls;
  kernel.ns += ns;
  kernel.flops += event.flops;
  kernel.bytes += event.bytes;
}

}  // namespace tsprun::detail
