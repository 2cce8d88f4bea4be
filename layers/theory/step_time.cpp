// Adds up the work of each resource per phase, then the time of the phases. The resource that binds is found by leaving out one
// resource at a time.
#include "layers/theory/step_time.h"

#include "layers/theory/flops.h"
#include "layers/theory/ways.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tsprun::detail::theory {

namespace {

constexpr std::size_t at(Resource resource) { return static_cast<std::size_t>(resource); }

/// Seconds of work of each resource.
using Work = std::array<double, kResources>;

/// Placement of the ranks of one flow on nodes.
struct Seats {
  double all;    ///< k, the ranks
  double node;   ///< m, how many of them are on one node
  double nodes;  ///< n, the nodes

  static Seats of(const Layout& layout, const Flow& flow, const Machine& machine) {
    // A replica's ranks are consecutive.
    const int k = flow.with_tensors ? layout.replica() : layout.degree(flow.axis);
    const int stride = flow.with_tensors ? 1 : layout.stride(flow.axis);
    const int m = std::clamp(machine.gpus_per_node / stride, 1, k);
    const int nodes = (k + m - 1) / m;
    return {static_cast<double>(k), static_cast<double>(m), static_cast<double>(nodes)};
  }
};

/// Returns the seconds for which links are busy with `bytes` that a rank receives in `messages` messages.
Work on_links(const Machine& machine, const Seats& seats, Pattern pattern, double bytes, double messages) {
  Work work{};
  const auto& [k, m, n] = seats;
  if (k <= 1) return work;
  double within = bytes;
  double across = 0;
  switch (pattern) {
    case Pattern::collective:
      across = bytes * (n - 1) / (k - 1);
      within = bytes - across;
      break;
    case Pattern::ring:
    case Pattern::neighbours:
      if (n > 1) across = bytes * (m > 1 ? machine.rail_crossing : 1);
      if (m <= 1) within = 0;
      break;
    case Pattern::all_to_all: {
      const double leaving = bytes * (k - m) / (k - 1);
      within = bytes - leaving;
      across = leaving * (1 / m + (m - 1) / m * machine.rail_crossing);
      break;
    }
  }
  double links = machine.fabric == Fabric::links && pattern != Pattern::ring ? std::max(1.0, m - 1) : 1;
  if (pattern == Pattern::neighbours) links = std::min(links, 2.0);
  if (within > 0)
    work[at(Resource::within_node)] = within / (machine.within_bytes_per_s * links) + messages * machine.within_latency;
  if (across > 0) work[at(Resource::across_nodes)] = across / machine.across_bytes_per_s() + messages * machine.nic_latency;
  return work;
}

/// One phase of one pass.
struct Stage {
  Work work{};  ///< compute and memory; for links, hidden work
  Work exposed{};
};

struct Pass {
  std::array<Stage, 3> stages;  ///< attention, MLP, head
  Stage whole;                  ///< work that belongs to no phase
};

/// Returns the step's seconds if only the resources in `on` take time.
double seconds(const std::array<Pass, 2>& passes, double update, const std::array<bool, kResources>& on) {
  const auto of = [&](const Work& work, Resource resource) { return on[at(resource)] ? work[at(resource)] : 0; };
  const auto links = {Resource::within_node, Resource::across_nodes};
  double sum = on[at(Resource::memory)] ? update : 0;
  for (const Pass& pass : passes) {
    double time = 0;
    std::array<double, kResources> busy{};
    for (const Stage& stage : pass.stages) {
      double longest = std::max(of(stage.work, Resource::compute), of(stage.work, Resource::memory));
      for (const Resource link : links) longest = std::max(longest, of(stage.work, link));
      time += longest;
      for (const Resource link : links) {
        time += of(stage.exposed, link);
        busy[at(link)] += of(stage.work, link) + of(stage.exposed, link);
      }
    }
    for (const Resource link : links) time = std::max(time, busy[at(link)] + of(pass.whole.work, link));
    for (const Resource link : links) time += of(pass.whole.exposed, link);
    sum += time;
  }
  return sum;
}

}  // namespace

std::string_view name(Resource resource, const Machine& machine) {
  switch (resource) {
    case Resource::compute: return "compute";
    case Resource::memory: return "memory";
    case Resource::within_node: return machine.fabric == Fabric::links ? "links within nodes" : "switch within nodes";
    case Resource::across_nodes: return "NICs";
  }
  return "";
}

StepTime step_time(const Setting& setting, const Layout& layout, const Machine& machine, DType dtype) {
  const std::optional<double> peak = machine.flops(dtype);
  if (!peak) {
    throw Error(Cause::refused,
                fmt::format("--dtype {}: {} doesn't state flops_per_s for it", tsprun::name(dtype), machine.name));
  }
  std::array<Pass, 2> passes{};
  const StepFlops flops = most_flops(setting, layout);
  const MeshSetting mesh{setting, layout};
  const MeshPlace place = place_of(mesh.layout, fullest(mesh));
  const RankParameters parameters = held(mesh, place);
  const CategoryBytes bytes = certain(mesh, place, 0);
  const auto element = static_cast<double>(setting.bytes.element);
  const auto M = static_cast<double>(setting.micro_batches);
  // A rank computes with all weights of its tensor rank, whichever rank holds them; data ranks that share weights hold parts.
  const double visits =
      M * (tokens_way(layout).shares_weights ? layout.sequence() : 1) * (layout.shares_weights() ? layout.sharers() : 1);
  // Backward reads each weight for dX and writes its part of the gradient.
  const std::array<double, 2> touches = {element, element + static_cast<double>(setting.bytes.accumulated)};
  for (const bool backward : {false, true}) {
    Pass& pass = passes[backward ? 1 : 0];
    const PassFlops& of = backward ? flops.backward : flops.forward;
    const double gemm = *peak * machine.gemm_efficiency.of_largest();
    const double attention = of.attention_linear / gemm + of.attention_core / (*peak * machine.attention_efficiency.of_largest());
    pass.stages[0].work[at(Resource::compute)] = attention;
    pass.stages[1].work[at(Resource::compute)] = of.mlp / gemm;
    pass.stages[2].work[at(Resource::compute)] = of.head / gemm;
    const auto saved = M * static_cast<double>(bytes[Category::activations]);
    const auto reads = [&](std::uint64_t held_elements) {
      return static_cast<double>(held_elements) * visits * touches[backward ? 1 : 0];
    };
    pass.stages[0].work[at(Resource::memory)] = (reads(parameters.attention) + saved / 2) / machine.memory_rate();
    pass.stages[1].work[at(Resource::memory)] = (reads(parameters.mlp) + saved / 2) / machine.memory_rate();
    pass.stages[2].work[at(Resource::memory)] = reads(parameters.vocabulary) / machine.memory_rate();
  }
  // Where the forward pass computes the head's gradients, it also touches what they need.
  if (flops.backward.head == 0) {
    double& late = passes[1].stages[2].work[at(Resource::memory)];
    passes[0].stages[2].work[at(Resource::memory)] += std::exchange(late, 0);
  }
  const double ranks = layout.ranks();
  for (const Flow& flow : step_flows(setting, layout)) {
    const Work work = on_links(machine, Seats::of(layout, flow, machine), flow.pattern, static_cast<double>(flow.bytes) / ranks,
                               static_cast<double>(flow.messages));
    Pass& pass = passes[flow.backward ? 1 : 0];
    Stage& stage = flow.phase == Phase::pass ? pass.whole : pass.stages[static_cast<std::size_t>(flow.phase)];
    for (int i = 0; i < kResources; ++i)
      (flow.hidden ? stage.work : stage.exposed)[static_cast<std::size_t>(i)] += work[static_cast<std::size_t>(i)];
  }
  const auto states = static_cast<double>(bytes[Category::parameters] + bytes[Category::gradients] + bytes[Category::optimizer]);
  const double update = 2 * states / machine.memory_rate();

  StepTime time;
  const std::array<bool, kResources> all = {true, true, true, true};
  time.seconds = seconds(passes, update, all);
  time.exposed = time.seconds - seconds(passes, update, {true, true, false, false});
  double largest = -1;
  for (int i = 0; i < kResources; ++i) {
    const auto resource = static_cast<std::size_t>(i);
    std::array<bool, kResources> others = all;
    others[resource] = false;
    const double gain = time.seconds - seconds(passes, update, others);
    if (gain > largest) {
      largest = gain;
      time.binds = static_cast<Resource>(i);
    }
    for (const Pass& pass : passes) {
      for (const Stage* stage : {&pass.stages[0], &pass.stages[1], &pass.stages[2], &pass.whole})
        time.busy[resource] += stage->work[resource] + stage->exposed[resource];
    }
  }
  time.busy[at(Resource::memory)] += update;
  return time;
}

}  // namespace tsprun::detail::theory
