// Programs for tests of the player, recorded on phantoms, and a fabric to play them on.
#pragma once

#include "core/context.h"
#include "core/program/recorder.h"
#include "core/virtual/player.h"
#include "transport/cause.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace tsprun::detail::test::player_support {

using Body = std::function<void(Context& context, Buffer all)>;

/// Records what `body` does on phantoms of `ranks` ranks, of which `per_node` are on a node. `all` is a buffer of `elements`.
inline std::vector<Program> record(int ranks, int recorded, int per_node, std::size_t elements, const std::string& algorithms,
                                   const Body& body, bool reassociate = false) {
  std::vector<Program> programs;
  for (int rank = 0; rank < recorded; ++rank) {
    PhantomOptions options;
    options.algorithms = algorithms;
    options.reassociate = reassociate;
    for (int other = 0; other < ranks; ++other) {
      const int node = other / per_node;
      options.peers.push_back({.node = node, .views = node == rank / per_node});
    }
    Context context = make_phantom(rank, ranks, options);
    const HeapBlock memory = context.allocate(elements * 4, "all");
    Recorder recorder;
    engine_of(context).record(&recorder);
    recorder.begin(heap_of(context).use());
    body(context, {memory.bytes().data(), elements, DType::f32});
    programs.push_back(recorder.end());
    engine_of(context).record(nullptr);
  }
  return programs;
}

/// Returns cause and text of the Error that playing these programs throws.
inline std::string failure(const std::vector<Program>& programs, const PlayOptions& options) {
  try {
    play(programs, options);
  } catch (const Error& error) {
    return std::string(name(error.cause())) + ": " + error.what();
  }
  return "none";
}

inline constexpr double kLatency = 2e-6;
inline constexpr double kRate = 50e9;

inline PlayOptions options(int ranks, bool links) {
  return {.fabric = {.ranks = ranks,
                     .ranks_per_node = ranks,
                     .links_within = links,
                     .within_bytes_per_s = kRate,
                     .within_latency = kLatency,
                     .nic_bytes_per_s = kRate,
                     .nic_latency = kLatency},
          .ranks = ranks,
          .price = [](int, const KernelCost&) { return 0.0; }};
}

inline void all_gather(Context& context, Buffer all) {
  const std::size_t own = all.count / static_cast<std::size_t>(context.size());
  context.world().all_gather(all.slice(own * static_cast<std::size_t>(context.rank()), own), all);
}

}  // namespace tsprun::detail::test::player_support
