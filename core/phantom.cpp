// Makes phantoms: ranks that are not there.
#include "core/context_parts.h"
#include "core/memory/address_space.h"
#include "transport/cause.h"

#include <fmt/format.h>

namespace tsprun::detail {

PhantomOptions likeness(const Context& context) {
  const ContextParts& parts = ContextParts::of(context);
  PhantomOptions like{.heap_budget = 0, .peers = {}, .algorithms = parts.algorithms, .reassociate = parts.choices.reassociates()};
  for (const Group::Member& member : CommunicatorState::of(*parts.world).group.members) {
    PhantomPeer& peer = like.peers.emplace_back();
    peer.node = member.node;
    if (member.transport == nullptr) continue;  // this rank itself
    peer.views = member.can_view;
    peer.plain_limit = member.transport->plain_limit();
  }
  return like;
}

Context make_phantom(int rank, int size, const PhantomOptions& like) {
  constexpr std::size_t kAddressSpace = std::size_t{1} << 44;
  // More than a machine has for a rank; emulators keep a record of each page.
  constexpr std::size_t kTouched = std::size_t{1} << 40;
  if (size < 1 || rank < 0 || rank >= size) throw Error(Cause::refused, fmt::format("phantom rank {} of {}", rank, size));
  // The phantom is on a node of its own, without transports to the others.
  const auto number = static_cast<std::uint32_t>(rank);
  const auto ranks = static_cast<std::uint32_t>(size);
  shm::NodeMemory alone = shm::NodeMemory::create_memfd({.heap_bytes = std::uint64_t{1} << 20, .world_size = ranks});
  bootstrap::describe_job(alone, {.first_rank = number, .node = number, .nodes = ranks});
  ContextOptions options;
  options.heap_budget = like.heap_budget;
  options.algorithms = like.algorithms;
  options.reassociate = like.reassociate;
  if (!like.peers.empty() && like.peers.size() != static_cast<std::size_t>(size)) {
    throw Error(Cause::refused, fmt::format("phantom rank {} of {}: {} peers are described", rank, size, like.peers.size()));
  }
  return ContextParts::context(std::make_unique<ContextParts>(
      std::move(alone), nullptr, 0, options, std::vector<int>{},
      like.touched ? reserve_address_space(kTouched) : imagine_address_space(kAddressSpace), like.peers));
}

}  // namespace tsprun::detail
