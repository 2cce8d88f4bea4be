// Answers of `plan` for one layout: memory, traffic, FLOPs and, with a machine, the modelled step time; as rows of tables and as
// JSON.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "layers/theory/flops.h"
#include "layers/theory/peaks.h"
#include "layers/theory/search.h"
#include "layers/theory/traffic.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the layouts to compare `given` with: `given` first, then other schemes on as many ranks with the same degree of dp,
/// and dp alone.
std::vector<Layout> peers_of(const Layout& given);

/// A layout with what theory found about it, and with its traffic and FLOPs if it is possible. Times are known with a machine
/// only, and `fits` counts with a memory budget only.
struct PlanPoint : theory::Candidate {
  theory::Traffic traffic;  ///< bytes received in a step, summed over all ranks
  theory::StepFlops flops;  ///< those of the busiest rank
};

/// A question to `plan`: the model, the machine and its limits.
struct PlanQuestion {
  Setting setting;
  DType dtype = DType::f32;
  std::uint64_t memory_bytes = 0;  ///< memory budget of a rank; 0: none is given
  std::size_t threads = 1;         ///< compute threads of a rank
  int nodes = 1;                   ///< nodes over which the ranks are spread
  bool share = true;               ///< ranks of one node share memory
  std::optional<theory::Machine> machine;
  std::vector<Recompute> modes = {};  ///< recomputation modes for a search to choose from; empty: the setting's alone
  std::string algorithms = {};        ///< TSP_ALGORITHMS
  theory::SearchOptions search_options() const {
    return {.memory_bytes = memory_bytes, .dtype = dtype, .modes = modes, .algorithms = algorithms};
  }
  theory::PeakOptions peak_options() const {
    theory::PeakOptions options{.threads = threads, .nodes = nodes, .share = share};
    options.like.algorithms = algorithms;
    if (machine) options.pieces = machine->pieces;
    return options;
  }
};

/// Calculates everything about one layout. It asks more ranks for their memory than a search does, so it suits a few layouts.
PlanPoint plan_point(const PlanQuestion& question, const Layout& layout);
/// Completes what a search found about a layout with its traffic and FLOPs.
PlanPoint plan_point(const PlanQuestion& question, const theory::Candidate& candidate);

/// Returns a row of the report: {layout, seq, batch, memory_peak_bytes, traffic_bytes, tokens_per_s, fits, why} and also label,
/// alike (labels), recompute, tp, sp, ranks, config, parameters (of the model), traffic_bytes_per_rank, flops, step_seconds,
/// exposed_seconds, mfu, bound_by. memory_peak_bytes is that of the rank that holds most; traffic_bytes is the sum over all
/// ranks, traffic_bytes_per_rank their mean, as in the table; flops are the busiest rank's. The row's key `means` says so. Values
/// that aren't known are null.
nlohmann::ordered_json plan_json(const PlanQuestion& question, const PlanPoint& point);

/// Returns the lines of the paper's Tables II to IV for these layouts, and of the modelled time if there is a machine. Here and
/// below lines have at most `columns` columns, but for longer words.
std::vector<std::string> plan_tables(const PlanQuestion& question, const std::vector<PlanPoint>& points, std::size_t columns);
/// Returns the question in one line: "paper-7b: h 4096, …; B 1, S 8192, bf16, recompute none".
std::string describe(const PlanQuestion& question);

/// Returns the lines of a search's table, at most `top` layouts that fit and `top` that don't; 0: all.
std::vector<std::string> search_table(const PlanQuestion& question, const std::vector<PlanPoint>& points, std::size_t top,
                                      std::size_t columns);
/// Returns lines that say why no layout fits, and what would make one fit.
std::vector<std::string> remedy_lines(const PlanQuestion& question, const theory::Remedies& remedies, std::size_t columns);
/// Returns the same as JSON: {layout, recompute, mem_bytes, gpus, batch, seq}; null for what wouldn't help.
nlohmann::ordered_json remedy_json(const theory::Remedies& remedies);

}  // namespace tsprun::detail::launcher
