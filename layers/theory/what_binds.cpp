// Takes one resource after another away.
#include "layers/theory/what_binds.h"

#include "layers/theory/step_time.h"

#include <algorithm>
#include <limits>

namespace tsprun::detail::theory {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
/// A resource that can't gain more than as many times what another one gains isn't tried.
constexpr double kNearly = 1.05;

void make_compute_infinite(Machine& machine) {
  for (std::optional<double>* flops : {&machine.flops_bf16, &machine.flops_f32, &machine.flops_f64}) {
    if (*flops) *flops = kInfinite;
  }
}

void make_kernels_free(Machine& machine) {
  for (auto& [kind, sizes] : machine.cores->kernels) {
    for (auto& [size, price] : sizes) price.seconds = 0;
  }
}

void make_chores_free(Machine& machine) {
  machine.cores->copy_bytes_per_s = machine.cores->reduce_bytes_per_s = kInfinite;
  machine.cores->message_seconds = 0;
}

void make_within_node_infinite(Machine& machine) {
  machine.within_bytes_per_s = kInfinite;
  machine.within_latency = 0;
}

void make_across_nodes_infinite(Machine& machine) {
  machine.nic_bytes_per_s = kInfinite;
  machine.nic_latency = 0;
}

}  // namespace

std::vector<WhatIf> what_ifs(const Machine& machine, double host_seconds) {
  std::vector<WhatIf> all;
  const auto add = [&](std::string_view resource, void (*make_infinite)(Machine&)) {
    make_infinite(all.emplace_back(WhatIf{.resource = resource, .without = machine, .host_seconds = host_seconds}).without);
  };
  if (machine.cores) {
    add("kernels", make_kernels_free);
    add("copies and sums", make_chores_free);
  } else {
    add(name(Resource::compute, machine), make_compute_infinite);
    add(name(Resource::memory, machine), [](Machine& of) { of.memory_bytes_per_s = kInfinite; });
  }
  add("launches of kernels", [](Machine& of) { of.launch_seconds = 0; });
  add(name(Resource::within_node, machine), make_within_node_infinite);
  all.back().without_latency.emplace(machine).within_latency = 0;
  add(name(Resource::across_nodes, machine), make_across_nodes_infinite);
  all.back().without_latency.emplace(machine).nic_latency = 0;
  if (host_seconds > 0) {
    add("the host", [](Machine&) {});
    all.back().host_seconds = 0;
  }
  if (machine.spine) add("leaf and spine switches", [](Machine& of) { of.spine.reset(); });
  return all;
}

double busiest_seconds(const Simulated& step, const sim::FabricShape& fabric, const sim::FabricShape& other) {
  sim::Timeline timeline;
  const sim::Fabric played(timeline, fabric);
  const sim::Fabric without(timeline, other);
  const auto rate = [](const sim::Fabric& on, std::string_view kind) {
    const auto link = std::ranges::find(on.links(), kind, &sim::Link::kind);
    return link == on.links().end() ? kInfinite : link->bytes_per_s;
  };
  double most = 0;
  for (const LinkUse& use : step.links) {
    if (use.busy == 0) continue;  // an infinite link
    most = std::max(most, use.busy * step.seconds * (rate(played, use.kind) / rate(without, use.kind)));
  }
  return most;
}

std::string what_binds(std::vector<WhatIf> all, double seconds, const std::function<double(const WhatIf&)>& played,
                       const std::function<double(const WhatIf&)>& latency_gains) {
  std::ranges::stable_sort(all, {}, &WhatIf::least);
  const WhatIf* binds = nullptr;
  double gain = 0;
  for (const WhatIf& each : all) {
    if (seconds - each.least <= kNearly * gain) break;
    const double gained = seconds - played(each);
    if (gained <= gain) continue;
    gain = gained;
    binds = &each;
  }
  if (binds == nullptr) return {};
  const bool is_latency = binds->without_latency && latency_gains(*binds) > gain / 2;
  return (is_latency ? "latency of " : "") + std::string(binds->resource);
}

}  // namespace tsprun::detail::theory
