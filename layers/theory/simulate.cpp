// Records the ranks of a unit as phantoms, and plays them.
#include "layers/theory/simulate.h"

#include "core/program/recorder.h"
#include "core/virtual/player.h"
#include "layers/theory/peaks.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tsprun::detail::theory {

namespace {

struct Recorded {
  Program program;
  CategoryBytes peaks;
};

/// Records one step of a rank. Buffers that are kept for later use exist from the second step on, so the second is recorded.
Recorded record_step(const MeshSetting& of, int number, int per_node, const SimulateOptions& options) {
  Recorder recorder;
  PeakOptions how;
  how.training = options.training;
  how.recorder = &recorder;
  how.like.algorithms = options.algorithms;
  how.like.reassociate = options.reassociate;
  for (int rank = 0; rank < of.layout.ranks(); ++rank) {
    const int node = rank / per_node;
    how.like.peers.push_back({.node = node, .views = node == number / per_node});
  }
  RunPeaks run(of, number, how);
  TokenBatch tokens;
  tokens.batch = of.setting.batch;
  tokens.sequence = of.setting.sequence;
  run.pass(tokens);
  recorder.begin(run.use());
  run.pass(tokens);
  return {recorder.end(), run.peaks()};
}

sim::FabricShape fabric_of(const Machine& machine, int ranks) {
  return {.ranks = ranks,
          .ranks_per_node = machine.gpus_per_node,
          .links_within = machine.fabric == Fabric::links,
          .within_bytes_per_s = machine.within_bytes_per_s,
          .within_latency = machine.within_latency,
          .nics_per_node = machine.nics_per_node,
          .nic_bytes_per_s = machine.nic_bytes_per_s,
          .nic_latency = machine.nic_latency,
          .rail_crossing = machine.rail_crossing};
}

std::vector<LinkUse> busiest(const std::vector<sim::Link>& links, double seconds, int steps) {
  std::vector<LinkUse> kinds;
  for (const sim::Link& link : links) {
    auto kind = std::ranges::find(kinds, link.kind, &LinkUse::kind);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {.kind = link.kind});
    kind->busy = std::max(kind->busy, seconds == 0 ? 0 : link.busy_seconds / seconds);
    kind->bytes = std::max(kind->bytes, link.bytes / steps);
  }
  std::erase_if(kinds, [](const LinkUse& kind) { return kind.bytes == 0; });
  return kinds;
}

}  // namespace

int unit_of(const Layout& layout, int gpus_per_node) {
  const int unit = std::max(1, std::lcm(layout.replica(), gpus_per_node));
  return layout.ranks() % unit == 0 ? unit : layout.ranks();
}

double kernel_seconds(const KernelCost& cost, const Machine& machine) {
  const double bytes = static_cast<double>(cost.bytes_read) + static_cast<double>(cost.bytes_written);
  const double memory = bytes / machine.memory_bytes_per_s;
  if (cost.flops == 0) return memory;
  const std::optional<double> peak = machine.flops(cost.dtype);
  if (!peak) {
    throw Error(Cause::refused, fmt::format("{} doesn't state flops_per_s for {}, in which {} computes", machine.name,
                                            tsprun::name(cost.dtype), cost.kernel));
  }
  const double efficiency = cost.kernel == "gemm" ? machine.gemm_efficiency : machine.attention_efficiency;
  return std::max(cost.flops / (*peak * efficiency), memory);
}

Simulated simulate(const MeshSetting& of, const Machine& machine, const SimulateOptions& options) {
  const int world = of.layout.ranks();
  const int unit = options.fold ? unit_of(of.layout, machine.gpus_per_node) : world;
  Simulated result;
  result.played = unit;
  std::vector<Program> programs;
  for (int rank = 0; rank < unit; ++rank) {
    Recorded recorded = record_step(of, rank, machine.gpus_per_node, options);
    if (recorded.peaks.total > result.memory_peaks.total) {
      result.memory_peaks = recorded.peaks;
      result.fullest = rank;
    }
    programs.push_back(std::move(recorded.program));
  }
  PlayOptions play_options;
  play_options.fabric = fabric_of(machine, unit);
  play_options.ranks = world;
  play_options.steps = options.steps;
  play_options.blocking = options.blocking;
  play_options.price = [&machine](const KernelCost& cost) { return kernel_seconds(cost, machine); };
  const PlayedRun run = play(programs, play_options);

  const int units = world / unit;
  result.seconds = run.seconds / options.steps;
  for (const PlayedTimes& rank : run.ranks) {
    result.compute_seconds = std::max(result.compute_seconds, rank.compute / options.steps);
    result.exposed_seconds = std::max(result.exposed_seconds, rank.exposed / options.steps);
    for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
      result.received[purpose] +=
          rank.traffic.received[purpose] / static_cast<std::uint64_t>(options.steps) * static_cast<std::uint64_t>(units);
    }
  }
  for (const Program& program : programs) {
    for (const ProgramItem& item : program.items) {
      if (item.kind == ItemKind::kernel) result.flops += program.costs[item.index].flops * units;
    }
  }
  result.links = busiest(run.links, run.seconds, options.steps);
  result.messages = run.messages / static_cast<std::uint64_t>(options.steps) * static_cast<std::uint64_t>(units);
  return result;
}

}  // namespace tsprun::detail::theory
