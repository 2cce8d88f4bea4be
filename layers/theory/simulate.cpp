// Records the ranks of a unit as phantoms, and plays them.
#include "layers/theory/simulate.h"

#include "core/kernels/parallel.h"
#include "core/virtual/player.h"
#include "layers/theory/few_layers.h"
#include "layers/theory/peaks.h"
#include "layers/theory/step_time.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace tsprun::detail::theory {

namespace {

/// Returns what a rank is like: its peers by node.
PeakOptions likeness(const MeshSetting& of, int number, const Machine& machine, const SimulateOptions& options) {
  const int per_node = machine.gpus_per_node;
  PeakOptions how;
  how.pieces = machine.pieces;
  how.training = options.training;
  how.like.algorithms = options.algorithms;
  how.like.reassociate = options.reassociate;
  for (int rank = 0; rank < of.layout.ranks(); ++rank) {
    const int node = rank / per_node;
    how.like.peers.push_back({.node = node, .views = node == number / per_node});
  }
  return how;
}

sim::FabricShape fabric_of(const Machine& machine, int ranks, int world, const SimulateOptions& options) {
  const Spine spine = machine.spine.value_or(Spine{.nodes_per_leaf = 0});
  return {.ranks = ranks,
          .ranks_per_node = machine.gpus_per_node,
          .links_within = machine.fabric == Fabric::links,
          .within_bytes_per_s = machine.within_bytes_per_s,
          .within_latency = machine.within_latency,
          .nics_per_node = machine.nics_per_node,
          .nic_bytes_per_s = machine.nic_bytes_per_s,
          .nic_latency = machine.nic_latency,
          .rail_crossing = machine.rail_crossing,
          .nodes_per_leaf = spine.nodes_per_leaf,
          .leaf_per_rail = spine.leaf_per_rail,
          .leaf_bytes_per_s = spine.leaf_bytes_per_s,
          .spine_bytes_per_s = spine.bytes_per_s,
          .spine_latency = spine.latency,
          .units = world / ranks,
          .slow = options.slow_ways};
}

/// Returns how many times longer a rank's kernels take than those of others.
double slowness_of(int rank, const SimulateOptions& options) {
  double factor = 1;
  for (const SlowRank& slow : options.slow_ranks) {
    if (slow.rank == rank) factor *= slow.factor;
  }
  return factor;
}

/// Seconds between ticks, at least: kernels without work have none.
constexpr double kShortestTick = 1e-7;

PlayedRun play_on(const Machine& machine, std::span<const Program> programs, const sim::UnitGrid& grid, const PriceFacts& facts,
                  const SimulateOptions& options, bool watched = false) {
  const int world = grid.units() * grid.unit;
  std::optional<CoreOptions> cores;
  if (machine.cores) {
    cores = {.cores = machine.cores->cores,
             .copy_bytes_per_s = machine.cores->copy_bytes_per_s,
             .reduce_bytes_per_s = machine.cores->reduce_bytes_per_s,
             .message_seconds = machine.cores->message_seconds,
             .tick_seconds = [&](const KernelCost& cost) {
               const KernelPrice price = machine.cores->price(cost, machine.name);
               return std::max(price.seconds / std::max(1.0, price.ticks), kShortestTick);
             }};
  }
  return play(programs, {.fabric = fabric_of(machine, grid.unit, world, options),
                         .ranks = world,
                         .units = grid.along,
                         .steps = options.steps,
                         .blocking = options.blocking,
                         .copies_slow_kernels = machine.copies_slow_kernels,
                         .cores = std::move(cores),
                         .launches = [&](const KernelCost& cost) { return kernel_launches(cost, machine, facts); },
                         .host_seconds = machine.cores ? 0 : options.host_seconds,
                         .trace = watched && options.trace,
                         .tasks = watched && options.tasks,
                         .price =
                             [&](int rank, const KernelCost& cost) {
                               return slowness_of(rank, options) * kernel_seconds(cost, machine, facts);
                             }});
}

constexpr double kInfinite = std::numeric_limits<double>::infinity();

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

double flops_of(const Program& program) {
  double sum = 0;
  for (const ProgramItem& item : program.items) {
    if (item.kind == ItemKind::kernel) sum += program.costs[item.index].flops;
  }
  return sum;
}

/// A machine with a resource that takes no time.
struct WhatIf {
  std::string_view resource;
  Machine without;
  double host_seconds = 0;
  double least = 0;  ///< seconds of a step's kernels on the rank that computes longest: a step takes as long
  std::optional<Machine> without_latency{};  ///< of a way of messages: the machine on which their latency alone takes no time
};

std::vector<WhatIf> what_ifs(const Machine& machine, const SimulateOptions& options) {
  std::vector<WhatIf> all;
  const auto add = [&](std::string_view resource, void (*make_infinite)(Machine&)) {
    make_infinite(
        all.emplace_back(WhatIf{.resource = resource, .without = machine, .host_seconds = options.host_seconds}).without);
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
  if (options.host_seconds > 0) {
    add("the host", [](Machine&) {});
    all.back().host_seconds = 0;
  }
  if (machine.spine) add("leaf and spine switches", [](Machine& of) { of.spine.reset(); });
  return all;
}

/// Notes how long the kernels of a rank take, if no other rank's take longer.
void note_least(std::vector<WhatIf>& all, const Program& program, int rank, const PriceFacts& facts,
                const SimulateOptions& options) {
  for (WhatIf& each : all) {
    const double seconds =
        kernels_seconds(program, [&](const KernelCost& cost) { return kernel_seconds(cost, each.without, facts); });
    each.least = std::max(each.least, slowness_of(rank, options) * seconds);
  }
}

/// Returns what would shorten a step of so many seconds most if it took no time; `played`: how long it takes then. To play again
/// takes long, so a resource that can't gain as much as another one does is left out. Of links whose latency makes most of it,
/// that is named.
std::string what_binds(std::vector<WhatIf> all, double seconds, const std::function<double(const WhatIf&)>& played) {
  std::ranges::stable_sort(all, {}, &WhatIf::least);
  const WhatIf* binds = nullptr;
  double gain = 0;
  for (const WhatIf& each : all) {
    if (seconds - each.least <= gain) break;
    const double gained = seconds - played(each);
    if (gained <= gain) continue;
    gain = gained;
    binds = &each;
  }
  if (binds == nullptr) return {};
  if (!binds->without_latency) return std::string(binds->resource);
  const double of_latency =
      seconds - played({.resource = binds->resource, .without = *binds->without_latency, .host_seconds = binds->host_seconds});
  return (of_latency > gain / 2 ? "latency of " : "") + std::string(binds->resource);
}

std::vector<LinkUse> busiest(const std::vector<sim::Link>& links, double seconds, int steps) {
  std::vector<LinkUse> kinds;
  for (const sim::Link& link : links) {
    auto kind = std::ranges::find(kinds, link.kind, &LinkUse::kind);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {.kind = std::string(link.kind)});
    kind->busy = std::max(kind->busy, seconds == 0 ? 0 : link.busy_seconds / seconds);
    kind->bytes = std::max(kind->bytes, link.bytes / steps);
  }
  std::erase_if(kinds, [](const LinkUse& kind) { return kind.bytes == 0; });
  return kinds;
}

/// Returns the tracks that a trace shows: those of all links or, if these are too many to look at, of the one of each kind that
/// carried most.
std::vector<LinkTrack> shown(PlayedRun& run) {
  constexpr std::size_t kMostShown = 96;  // the links and NICs of eight GPUs and some more
  if (run.tracks.size() <= kMostShown) return std::move(run.tracks);
  std::map<std::string_view, LinkTrack*> busiest;
  for (LinkTrack& track : run.tracks) {
    LinkTrack*& most = busiest[run.links[track.link].kind];
    if (most == nullptr || run.links[track.link].bytes > run.links[most->link].bytes) most = &track;
  }
  std::vector<LinkTrack> tracks;
  for (const auto& [kind, track] : busiest) tracks.push_back(std::move(*track));
  return tracks;
}

/// Returns the largest rank that is said to be slow, or to have a slow way; -1: there is none.
int most_named(const SimulateOptions& options) {
  int most = -1;
  for (const SlowRank& slow : options.slow_ranks) most = std::max(most, slow.rank);
  for (const sim::SlowWay& slow : options.slow_ways) most = std::max({most, slow.one, slow.other});
  return most;
}

/// The ranks that are played for a setting, and how.
struct Unit {
  const Machine& machine;
  const SimulateOptions& options;
  int ranks;           ///< of whole replicas, which stand for all: unit_of()
  sim::UnitGrid grid;  ///< whose first unit is played: those ranks, or fewer
  PriceFacts facts;

  /// Returns the programs of the played ranks; notes the memory of the one that holds most.
  std::vector<Program> record(const MeshSetting& of, Simulated& result) const {
    std::vector<Program> programs;
    for (int rank = 0; rank < grid.unit; ++rank) {
      RecordedStep step = record(of, rank);
      note_memory(step, rank, result);
      programs.push_back(std::move(step.program));
    }
    return programs;
  }
  RecordedStep record(const MeshSetting& of, int rank) const {
    return record_step(of, rank, likeness(of, rank, machine, options), 2, false);
  }
  static void note_memory(const RecordedStep& step, int rank, Simulated& result) {
    if (step.peaks.total <= result.memory_peaks.total) return;
    result.memory_peaks = step.peaks;
    result.fullest = rank;
  }
  /// Returns the seconds of a step without a resource.
  double seconds(const WhatIf& without, std::span<const Program> programs) const {
    SimulateOptions how = options;
    how.host_seconds = without.host_seconds;
    return play_on(without.without, programs, grid, facts, how).seconds / options.steps;
  }
};

/// Plays one step of all layers.
Simulated play_whole(const MeshSetting& of, const Unit& by, bool binds) {
  const auto& [machine, options, ranks, grid, facts] = by;
  const int unit = grid.unit;
  Simulated result;
  result.played = unit;
  result.layers = of.setting.model.layers;
  std::vector<Program> programs = by.record(of, result);
  PlayedRun run = play_on(machine, programs, grid, facts, options, true);
  result.traces = std::move(run.traces);
  result.tracks = shown(run);
  result.slice_seconds = run.slice_seconds;
  result.tasks = std::move(run.tasks);
  const int units = grid.units();
  result.seconds = run.seconds / options.steps;
  if (binds) {
    std::vector<WhatIf> all = what_ifs(machine, options);
    for (int rank = 0; rank < unit; ++rank) note_least(all, programs[static_cast<std::size_t>(rank)], rank, facts, options);
    result.binds =
        what_binds(std::move(all), result.seconds, [&](const WhatIf& without) { return by.seconds(without, programs); });
  }
  for (const PlayedTimes& rank : run.ranks) {
    result.compute_seconds = std::max(result.compute_seconds, rank.compute / options.steps);
    result.exposed_seconds = std::max(result.exposed_seconds, rank.exposed / options.steps);
    for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
      result.received[purpose] +=
          rank.traffic.received[purpose] / static_cast<std::uint64_t>(options.steps) * static_cast<std::uint64_t>(units);
    }
  }
  for (const Program& program : programs) {
    if (options.trace) result.groups.push_back(program.groups);
    result.flops += flops_of(program) * units;
  }
  for (std::size_t rank = 0; options.tasks && rank < programs.size(); ++rank) {
    std::vector<double> seconds;
    for (const KernelCost& cost : programs[rank].costs)
      seconds.push_back(slowness_of(static_cast<int>(rank), options) * kernel_seconds(cost, machine, facts));
    result.programs.push_back({.program = std::move(programs[rank]), .kernel_seconds = std::move(seconds)});
  }
  result.links = busiest(run.links, run.seconds, options.steps);
  result.messages = run.messages / static_cast<std::uint64_t>(options.steps) * static_cast<std::uint64_t>(units);
  return result;
}

/// Figures of a step that the programs of all layers give, and how few ranks can be played.
struct Whole {
  Simulated step;
  std::vector<WhatIf> without;
  sim::UnitGrid grid;
};

Whole record_whole(const MeshSetting& of, const Unit& by, kernels::Pool& threads) {
  Whole whole{.step = {}, .without = what_ifs(by.machine, by.options), .grid = by.grid};
  FewestRanks fewest(of.layout, by.machine, [&](const KernelCost& cost) { return kernel_seconds(cost, by.machine, by.facts); });
  const int units = of.layout.ranks() / by.ranks;
  const auto note = [&](int rank, RecordedStep recorded) {
    Unit::note_memory(recorded, rank, whole.step);
    note_least(whole.without, recorded.program, rank, by.facts, by.options);
    whole.step.flops += flops_of(recorded.program) * units;
    for (std::size_t i = 0; i < kPurposes; ++i) {
      const auto purpose = static_cast<Purpose>(i);
      whole.step.received[i] +=
          static_cast<std::uint64_t>(units) * (recorded.traffic.forward[purpose] + recorded.traffic.backward[purpose]);
    }
    fewest.add(std::move(recorded.program));
  };
  // As many ranks at once as there are threads: a program of many layers is large.
  std::vector<RecordedStep> recorded(threads.threads());
  for (int first = 0; first < by.ranks; first += static_cast<int>(recorded.size())) {
    const std::size_t count = std::min(recorded.size(), static_cast<std::size_t>(by.ranks - first));
    threads.run(count, [&](std::size_t i, std::size_t) { recorded[i] = by.record(of, first + static_cast<int>(i)); });
    for (std::size_t i = 0; i < count; ++i) note(first + static_cast<int>(i), std::move(recorded[i]));
  }
  if (fewest.grid()) whole.grid = *fewest.grid();
  return whole;
}

/// Plays steps of few layers, or of all if the step of all doesn't follow from them, on as few ranks as stand for all.
Simulated play_few(const MeshSetting& of, const Unit& by) {
  kernels::Pool threads(std::min(by.options.threads, static_cast<std::size_t>(by.ranks)));
  Whole whole = record_whole(of, by, threads);
  const Unit few{
      .machine = by.machine, .options = by.options, .ranks = by.ranks, .grid = std::move(whole.grid), .facts = by.facts};
  std::optional<FromFewLayers> found =
      from_few_layers(of, threads, [&](std::size_t layers) { return play_whole(with_layers(of, layers), few, false); });
  Simulated step = found ? std::move(found->step) : play_whole(of, few, by.options.binds);
  step.memory_peaks = whole.step.memory_peaks;
  step.fullest = whole.step.fullest;
  step.flops = whole.step.flops;
  step.received = whole.step.received;
  if (!found || !by.options.binds) return step;
  step.binds = what_binds(std::move(whole.without), found->seconds_by_first_growth, [&](const WhatIf& without) {
    return seconds_by_first_growth(of, threads, [&](std::size_t layers) {
      Simulated unused;
      return few.seconds(without, few.record(with_layers(of, layers), unused));
    });
  });
  return step;
}

}  // namespace

Simulated simulate(const MeshSetting& of, const Machine& machine, const SimulateOptions& options) {
  const int world = of.layout.ranks();
  if (const int fewest = most_named(options) + 1; fewest > 0 && (options.fold || fewest > world)) {
    throw Error(Cause::refused, options.fold ? std::string("slow ranks and ways need every rank to be played")
                                             : fmt::format("slow rank {}: ranks are 0 to {}", fewest - 1, world - 1));
  }
  const int played = options.fold ? unit_of(of.layout, machine) : world;
  const Unit unit{.machine = machine,
                  .options = options,
                  .ranks = played,
                  .grid = {.unit = played, .along = {world / played}},
                  .facts = PriceFacts::of(of.setting, options.training)};
  // Fewer are played whole in a few seconds.
  constexpr std::size_t kManyLayersOfRanks = 512;
  const bool many = static_cast<std::size_t>(played) * of.setting.model.layers >= kManyLayersOfRanks;
  if (many && options.fold && !options.trace && !options.tasks && may_have_few_layers(of)) return play_few(of, unit);
  return play_whole(of, unit, options.binds);
}

}  // namespace tsprun::detail::theory
