// Estimate of the time that a training step takes on a machine, by formulas (flows.h, flops.h) rather than recorded programs: a
// search asks it for every layout in every recomputation mode before it runs any, to know which are worth a run. The times that
// it prints are those of programs (lone_walk.h).
//
//   compute    GEMM FLOPs over peak × gemm_efficiency, plus flash attention's FLOPs over peak × attention_efficiency, on the rank
//              that computes most. Counts visible pairs only, and every recomputation. Kernels count as large; launching them
//              takes no time.
//   memory     bytes that must at least pass through the GPU's memory: weights once a micro-batch and pass; saved activations
//   once each way; all
//              parameters, gradients and optimizer states read and written once in the update. A phase takes the longer of
//              compute and memory.
//   links      the mean bytes that a rank receives in each flow (flows.h), on the links that the flow's axis uses.
//              Within a node, with k participants: on fabric `links`, a collective or all-to-all uses k−1 links and a ring one;
//              on `switch`, every flow has the port's speed. An axis over m GPUs of each of n nodes is hierarchical: of a
//              collective's bytes (n−1)/(k−1) cross nodes along rails, the rest moves within the node; a ring's bytes all pass
//              the NIC at a node's end and, if m > 1, change rails there; an all-to-all sends (k−m)/(k−1) of its bytes across
//              nodes, of which (m−1)/m change rails. Bytes that change rails take rail_crossing times as long. Each message adds
//              its latency.
//   overlap    a flow that flows.h marks as hidden runs during its phase (attention, MLP or head, in each pass); a phase takes
//              the longest of its computation and of each link's hidden work. Gradients that belong to the whole pass hide
//              behind what is left. Everything else is exposed and adds up.
//
// The resource that binds a layout is the one that would shorten the step most if it were infinitely fast.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "layers/theory/machine.h"

#include <cstdint>
#include <string_view>

namespace tsprun::detail::theory {

/// Resources whose use the model adds up.
enum class Resource : std::uint8_t { compute, memory, within_node, across_nodes };
inline constexpr int kResources = 4;
/// Returns the resource's name in reports: "compute", "memory", "links within nodes" or "switch within nodes", "NICs".
std::string_view name(Resource resource, const Machine& machine);

/// Modelled time of one training step.
struct StepTime {
  double seconds = 0;
  double exposed = 0;                     ///< seconds that would be saved if nothing had to be communicated
  Resource binds = Resource::compute;     ///< the resource that binds
  std::array<double, kResources> busy{};  ///< seconds that each resource works on its own
};

/// Returns the modelled time of a training step whose products run in `dtype`. The layout must be possible (why_impossible()).
/// Throws Error(refused) if the machine doesn't state FLOP/s for `dtype`.
StepTime step_time(const Setting& setting, const Layout& layout, const Machine& machine, DType dtype);

}  // namespace tsprun::detail::theory
