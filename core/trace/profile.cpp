// Finds the row of an event, and adds to it.
#include "core/trace/profile.h"

#include <algorithm>
#include <functional>

namespace tsprun::detail {

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
    const auto same = std::ranges::find_if(
        waits_, [&](const Wait& wait) { return wait.rank == event.waited_for && (wait.rank < 0 || wait.op == event.waited_op); });
    Wait& wait = same != waits_.end() ? *same : waits_.emplace_back(Wait{.op = event.waited_op, .rank = event.waited_for});
    ++wait.calls;
    wait.ns += ns;
    return;
  }
  const auto [at, is_new] = places_.try_emplace({event.name, event.matrix, event.sizes}, kernels_.size());
  if (is_new) kernels_.push_back({.name = event.name, .matrix = event.matrix, .sizes = event.sizes});
  Kernel& kernel = kernels_[at->second];
  ++kernel.calls;
  kernel.ns += ns;
  kernel.flops += event.flops;
  kernel.bytes += event.bytes;
}

}  // namespace tsprun::detail
