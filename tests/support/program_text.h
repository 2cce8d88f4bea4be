// Programs in words, and the first difference of two.
#pragma once

#include "core/program/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail::test {

inline std::string describe_cost(const KernelCost& cost) {
  const auto last = std::find_if(cost.sizes.rbegin(), cost.sizes.rend(), [](std::uint64_t size) { return size != 0; });
  const std::span<const std::uint64_t> sizes(cost.sizes.begin(), last.base());
  return fmt::format("{} {} to {} [{}], {:g} FLOPs, {} B read, {} B written", cost.kernel, name(cost.dtype), name(cost.result),
                     fmt::join(sizes, ", "), cost.flops, cost.bytes_read, cost.bytes_written);
}

inline std::string describe_call(const ProgramCall& call) {
  return fmt::format("{} {} {} for {}, {} B, root {}, source {}, group {:x}, signature {:x}", name(call.op), name(call.reduction),
                     name(call.dtype), name(call.purpose), call.bytes, call.root, call.source, call.group, call.signature);
}

inline bool alike(const Program& one, const Program& other, std::size_t number) {
  const ProgramItem& item = one.items[number];
  if (item != other.items[number]) return false;
  switch (item.kind) {
    case ItemKind::kernel: return one.costs[item.index] == other.costs[item.index];
    case ItemKind::post:
    case ItemKind::call: return one.calls[item.index] == other.calls[item.index];
    default: return true;
  }
}

/// Returns an item in words, with all that it says: "wait for #2 on stream weights".
inline std::string describe(const Program& program, std::size_t number) {
  const ProgramItem& item = program.items[number];
  const std::string_view stream = name(static_cast<Stream>(item.stream));
  switch (item.kind) {
    case ItemKind::kernel: return describe_cost(program.costs[item.index]);
    case ItemKind::post:
      return fmt::format("post #{} on stream {}: {}", item.amount, stream, describe_call(program.calls[item.index]));
    case ItemKind::call:
      return fmt::format("call #{} on stream {}: {}", item.amount, stream, describe_call(program.calls[item.index]));
    case ItemKind::wait: return fmt::format("wait for #{} on stream {}", item.amount, stream);
    case ItemKind::stage: return fmt::format("stage {}{}", item.stream, item.amount == 0 ? "" : ", backward");
    case ItemKind::take: return fmt::format("take {} B of {}", item.amount, name(static_cast<Category>(item.index)));
    case ItemKind::give: return fmt::format("give {} B of {} back", item.amount, name(static_cast<Category>(item.index)));
  }
  return "?";
}

/// Returns the first difference of two programs in words, with its place and the items before it; empty if both do the same.
inline std::string first_difference(const Program& one, const Program& other) {
  if (one.held_at_begin != other.held_at_begin) {
    return fmt::format("{} and {} B are in use before the first item", one.held_at_begin.total, other.held_at_begin.total);
  }
  const std::size_t both = std::min(one.items.size(), other.items.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (alike(one, other, i)) continue;
    std::string before;
    for (std::size_t k = i - std::min<std::size_t>(i, 3); k < i; ++k) before += fmt::format("\n  {}", describe(one, k));
    return fmt::format("item {} of {} and {}: \"{}\" and \"{}\", after{}", i, one.items.size(), other.items.size(),
                       describe(one, i), describe(other, i), before);
  }
  if (one.items.size() == other.items.size()) return {};
  const Program& longer = one.items.size() > both ? one : other;
  return fmt::format("{} and {} items; the next is \"{}\"", one.items.size(), other.items.size(), describe(longer, both));
}

}  // namespace tsprun::detail::test
