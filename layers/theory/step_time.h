// A model of a training step's time on a machine, good for ranking layouts, not for promises.
//
//   compute    GEMM FLOPs over peak × gemm_efficiency, plus flash attention's over peak × attention_efficiency, of the rank that
//              computes most. Causal pairs only; every recomputation counted.
//   memory     bytes that must go through the GPU's memory at least: weights once a pass, what is saved once each way, all
//              parameters, gradients and optimizer states once in the update. A phase takes the longer of compute and memory.
//   links      each exchange's mean received bytes a rank (flows.h), on the links that its axis uses:
//              within a node, k participants: fabric `links` gives a collective or all-to-all (k−1) links, a ring one;
//              `switch` gives the port's speed to all. An axis over m GPUs of each of n nodes is hierarchical: of a collective's
//              bytes (n−1)/(k−1) cross nodes along rails, the rest moves within the node; a ring's bytes all pass the NIC at a
//              node's end and, with m > 1, change rails there; an all-to-all sends (k−m)/(k−1) across nodes, of which (m−1)/m
//              change rails. Bytes that change rails take rail_crossing times as long. Each message adds its latency.
//   overlap    what flows.h marks as hidden goes on during its phase (attention, MLP or head, a pass each); a phase takes the
//              longest of computing and each link's hidden work. Gradients that belong to the whole pass hide behind what is
//              left. The rest is exposed and adds up.
//
// What binds a layout is the resource that would shorten the step most if it were infinitely fast.
#pragma once

#include "layers/theory/machine.h"
#include "layers/theory/spread.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace tsprun::theory {

enum class Resource : std::uint8_t { compute, memory, within_node, across_nodes };
inline constexpr int kResources = 4;
/// "compute", "memory", "xGMI links" or "switch", "NICs".
std::string_view name(Resource resource, const Machine& machine);

struct StepTime {
  double seconds = 0;
  double exposed = 0;  ///< seconds that would go if nothing had to be communicated
  Resource binds = Resource::compute;
  std::array<double, kResources> busy{};  ///< seconds that each resource works on its own
};

/// `dtype`: whose FLOP/s count. Throws Error(refused) if the machine doesn't state them. Only for spreads that are possible.
StepTime step_time(const Setting& setting, const Spread& spread, const Machine& machine, DType dtype);

}  // namespace tsprun::theory
