// Records the ranks of a unit as phantoms, and plays them.
#include "layers/theory/simulate.h"

#include "core/kernels/parallel.h"
#include "core/virtual/player.h"
#include "layers/theory/few_layers.h"
#include "layers/theory/peaks.h"
#include "layers/theory/rank_figures.h"
#include "layers/theory/what_binds.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
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
  RankFigures figures(const RecordedStep& step, const std::vector<WhatIf>& without) const {
    return figures_of(step, machine, facts, without);
  }
  /// Notes how long the busiest links of a step that was played carry something without each resource.
  void note_links(std::vector<WhatIf>& without, const Simulated& step) const {
    const auto fabric = [&](const Machine& on) { return fabric_of(on, grid.unit, grid.units() * grid.unit, options); };
    for (WhatIf& each : without) each.least = std::max(each.least, busiest_seconds(step, fabric(machine), fabric(each.without)));
  }
  /// Returns the seconds of a step without a resource.
  double seconds(const WhatIf& without, std::span<const Program> programs) const {
    SimulateOptions how = options;
    how.host_seconds = without.host_seconds;
    return play_on(without.without, programs, grid, facts, how).seconds / options.steps;
  }
};

/// Plays one step by these programs of the played ranks, which move into the result if its tasks are asked for. `result` has what
/// is known of it.
Simulated play_programs(const MeshSetting& of, const Unit& by, std::span<Program> programs, bool binds, Simulated result = {}) {
  const auto& [machine, options, ranks, grid, facts] = by;
  result.played = grid.unit;
  result.layers = of.setting.model.layers;
  PlayedRun run = play_on(machine, programs, grid, facts, options, true);
  result.traces = std::move(run.traces);
  result.tracks = shown(run);
  result.slice_seconds = run.slice_seconds;
  result.tasks = std::move(run.tasks);
  const int units = grid.units();
  result.seconds = run.seconds / options.steps;
  for (const PlayedTimes& rank : run.ranks) {
    result.compute_seconds = std::max(result.compute_seconds, rank.compute / options.steps);
    result.exposed_seconds = std::max(result.exposed_seconds, rank.exposed / options.steps);
    for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
      result.received[purpose] +=
          rank.traffic.received[purpose] / static_cast<std::uint64_t>(options.steps) * static_cast<std::uint64_t>(units);
    }
  }
  result.links = busiest(run.links, run.seconds, options.steps);
  if (binds) {
    std::vector<WhatIf> all = what_ifs(machine, options.host_seconds);
    for (WhatIf& each : all) {
      for (std::size_t rank = 0; rank < programs.size(); ++rank) {
        const double kernels =
            kernels_seconds(programs[rank], [&](const KernelCost& cost) { return kernel_seconds(cost, each.without, by.facts); });
        each.least = std::max(each.least, slowness_of(static_cast<int>(rank), options) * kernels);
      }
    }
    by.note_links(all, result);
    const auto seconds = [&](const WhatIf& without) { return by.seconds(without, programs); };
    result.binds = what_binds(std::move(all), result.seconds, seconds,
                              [&](const WhatIf& links) { return result.seconds - seconds(links.of_latency()); });
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
  result.messages = run.messages / static_cast<std::uint64_t>(options.steps) * static_cast<std::uint64_t>(units);
  return result;
}

/// Plays one step of all layers.
Simulated play_whole(const MeshSetting& of, const Unit& by, bool binds) {
  Simulated result;
  std::vector<Program> programs = by.record(of, result);
  return play_programs(of, by, programs, binds, std::move(result));
}

/// Records the ranks of a unit, as many at once as there are threads, since a program of many layers is large; `note` hears of
/// them in order.
void record_ranks(const MeshSetting& of, const Unit& by, const std::vector<WhatIf>& without, kernels::Pool& threads,
                  const std::function<void(std::size_t rank, Program program, RankFigures figures)>& note) {
  std::vector<RecordedStep> steps(threads.threads());
  std::vector<RankFigures> figures(steps.size());
  const auto ranks = static_cast<std::size_t>(by.ranks);
  for (std::size_t first = 0; first < ranks; first += steps.size()) {
    const std::size_t count = std::min(steps.size(), ranks - first);
    threads.run(count, [&](std::size_t i, std::size_t) {
      steps[i] = by.record(of, static_cast<int>(first + i));
      figures[i] = by.figures(steps[i], without);
    });
    for (std::size_t i = 0; i < count; ++i) note(first + i, std::move(steps[i].program), std::move(figures[i]));
  }
}

/// What the programs of all ranks of a unit say of a step of all layers, and how few ranks can be played.
struct Whole {
  std::vector<RankFigures> ranks;
  std::size_t fullest = 0;  ///< the rank that holds most, the first of several
  std::optional<sim::UnitGrid> fewest;
  double difference = 0;  ///< FewestRanks::difference()
};

/// Programs of a unit's ranks by number of layers.
using RecordedLayers = std::map<std::size_t, std::vector<Program>>;

/// Returns what programs of `recorded` layers say, which go to `keep`; `all_layers` returns the figures of a rank with all.
Whole record_whole(
    const MeshSetting& of, std::size_t recorded, const Unit& by, const std::vector<WhatIf>& without, kernels::Pool& threads,
    const std::function<RankFigures(std::size_t rank, RankFigures figures)>& all_layers,
    const std::function<void(Program program)>& keep = [](const Program&) {}) {
  Whole whole;
  FewestRanks fewest(
      of.layout, by.machine, [&](const KernelCost& cost) { return kernel_seconds(cost, by.machine, by.facts); },
      static_cast<double>(of.setting.model.layers) / static_cast<double>(recorded));
  record_ranks(with_layers(of, recorded), by, without, threads, [&](std::size_t rank, Program program, RankFigures figures) {
    fewest.add(program, whole.ranks.emplace_back(all_layers(rank, std::move(figures))).kernels);
    keep(std::move(program));
  });
  whole.fewest = fewest.grid();
  if (whole.fewest) whole.difference = fewest.difference();
  const auto most = std::ranges::max_element(whole.ranks, {}, [](const RankFigures& rank) { return rank.peaks.total; });
  whole.fullest = static_cast<std::size_t>(most - whole.ranks.begin());
  return whole;
}

/// Returns the same from programs of few layers; nothing if the program of all layers of the fullest rank says something else, or
/// that of the first or the last rank. Their own figures count. The programs go to `recorded`.
std::optional<Whole> record_few_layers(const MeshSetting& of, const Unit& by, const std::vector<WhatIf>& without,
                                       kernels::Pool& threads, RecordedLayers& recorded) {
  const Growth growth = growth_of(of);
  std::vector<RankFigures> few;
  record_ranks(with_layers(of, growth.few), by, without, threads, [&](std::size_t, Program program, RankFigures figures) {
    few.push_back(std::move(figures));
    recorded[growth.few].push_back(std::move(program));
  });
  Whole whole = record_whole(
      of, growth.more, by, without, threads,
      [&](std::size_t rank, const RankFigures& more) { return grown(few[rank], more, growth.times); },
      [&](Program program) { recorded[growth.more].push_back(std::move(program)); });
  const std::set<std::size_t> chosen{0, whole.fullest, whole.ranks.size() - 1};
  const std::vector<std::size_t> asked(chosen.begin(), chosen.end());
  std::vector<RankFigures> exact(asked.size());
  threads.run(asked.size(),
              [&](std::size_t i, std::size_t) { exact[i] = by.figures(by.record(of, static_cast<int>(asked[i])), without); });
  for (std::size_t i = 0; i < asked.size(); ++i) {
    RankFigures& figures = whole.ranks[asked[i]];
    if (!exact[i].is_nearly(figures)) return std::nullopt;
    figures = std::move(exact[i]);
  }
  return whole;
}

/// Notes in a step what the programs of all ranks say.
void note_whole(const Whole& whole, int units, Simulated& step) {
  step.ranks_difference = whole.difference;
  step.fullest = static_cast<int>(whole.fullest);
  step.memory_peaks = whole.ranks[whole.fullest].peaks;
  step.flops = 0;
  step.received = {};
  for (const RankFigures& rank : whole.ranks) {
    step.flops += rank.flops * units;
    for (std::size_t i = 0; i < kPurposes; ++i) step.received[i] += rank.received[i] * static_cast<std::uint64_t>(units);
  }
}

/// Plays steps of few layers, or of all if the step of all doesn't follow from them, on as few ranks as stand for all.
Simulated play_few(const MeshSetting& of, const Unit& by) {
  kernels::Pool threads(std::min(by.options.threads, static_cast<std::size_t>(by.ranks)));
  std::vector<WhatIf> without = by.options.binds ? what_ifs(by.machine, by.options.host_seconds) : std::vector<WhatIf>{};
  RecordedLayers recorded;
  std::optional<Whole> whole = record_few_layers(of, by, without, threads, recorded);
  if (!whole) {
    whole =
        record_whole(of, of.setting.model.layers, by, without, threads, [](std::size_t, RankFigures figures) { return figures; });
  }
  const Unit few{.machine = by.machine,
                 .options = by.options,
                 .ranks = by.ranks,
                 .grid = whole->fewest.value_or(by.grid),
                 .facts = by.facts};
  const auto played = static_cast<std::size_t>(few.grid.unit);
  for (auto& [layers, programs] : recorded) programs.erase(programs.begin() + few.grid.unit, programs.end());
  const std::size_t fewest = growth_of(of).fewest;
  const std::size_t few_layers = growth_of(of).few;
  recorded[fewest].resize(played);
  threads.run(played, [&](std::size_t rank, std::size_t) {
    recorded.at(fewest)[rank] = few.record(with_layers(of, fewest), static_cast<int>(rank)).program;
  });
  std::optional<FromFewLayers> found = from_few_layers(
      of, threads, [&](std::size_t layers) { return play_programs(with_layers(of, layers), few, recorded.at(layers), false); });
  Simulated step = found ? std::move(found->step) : play_whole(of, few, by.options.binds);
  note_whole(*whole, of.layout.ranks() / by.ranks, step);
  if (!found || !by.options.binds) return step;
  for (std::size_t i = 0; i < without.size(); ++i) {
    for (const RankFigures& rank : whole->ranks) without[i].least = std::max(without[i].least, rank.kernels_without[i]);
  }
  few.note_links(without, step);
  for (WhatIf& each : without) each.least *= found->seconds_by_first_growth / step.seconds;
  const double all = found->seconds_by_first_growth;
  // Of links that may bind, the fewest layers are played at the same time without their latency alone. Where that makes about
  // half of what the fewest layers gain, more layers must tell what part it makes of the gain of all.
  constexpr double kSurelyLess = 0.25;
  struct OfLatency {
    double fewest_seconds = 0;
    double part = 0;  // of what the fewest layers gain
    double gain = 0;  // of links that take no time, by all layers
  };
  std::map<std::string_view, OfLatency> of_latency;
  const auto seconds = [&](const WhatIf& resource) {
    double of_few = 0;
    double of_fewest = 0;
    OfLatency latency;
    threads.run(resource.without_latency ? 3 : 2, [&](std::size_t task, std::size_t) {
      if (task == 0) of_few = few.seconds(resource, recorded.at(few_layers));
      if (task == 1) of_fewest = few.seconds(resource, recorded.at(fewest));
      if (task == 2) latency.fewest_seconds = few.seconds(resource.of_latency(), recorded.at(fewest));
    });
    const double of_all = seconds_by_first_growth(of, of_fewest, of_few);
    latency.part = (found->fewest_seconds - latency.fewest_seconds) / (found->fewest_seconds - of_fewest);
    latency.gain = all - of_all;
    of_latency[resource.resource] = latency;
    return of_all;
  };
  step.binds = what_binds(std::move(without), all, seconds, [&](const WhatIf& links) {
    const OfLatency& latency = of_latency.at(links.resource);
    if (latency.part < kSurelyLess || latency.part > 1 - kSurelyLess) return latency.part * latency.gain;
    const double of_few = few.seconds(links.of_latency(), recorded.at(few_layers));
    return all - seconds_by_first_growth(of, latency.fewest_seconds, of_few);
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
