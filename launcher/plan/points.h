// What `plan` says of one layout: memory, traffic, FLOPs, and with a machine the modelled time; as rows of tables and as JSON.
#pragma once

#include "layers/theory/flops.h"
#include "layers/theory/search.h"
#include "layers/theory/spread.h"
#include "layers/theory/traffic.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// The schemes that compete with `given` on as many ranks, it first; with its degree of dp, and dp alone at the end.
std::vector<theory::Spread> peers_of(const theory::Spread& given);

/// One layout in numbers. Without `possible` only `why` is known.
struct PlanPoint {
  theory::Spread spread;
  std::vector<theory::Spread> alike;  ///< theory::Candidate::alike
  Recompute recompute = Recompute::none;
  bool possible = false;
  CategoryBytes memory;     ///< peak of the rank that holds most
  theory::Traffic traffic;  ///< of a step, over all ranks
  theory::StepFlops flops;  ///< of the busiest rank
  std::optional<theory::StepTime> time;
  std::optional<double> tokens_per_s;
  std::optional<double> utilization;  ///< MFU, 0 to 1
  std::optional<bool> fits;           ///< unknown without a budget
  std::string why;
};

struct PlanQuestion {
  theory::Setting setting;
  DType dtype = DType::f32;
  std::uint64_t memory_bytes = 0;  ///< 0: no budget is known
  std::size_t threads = 1;         ///< of a rank
  int nodes = 1;                   ///< on which the ranks sit
  bool share = true;               ///< ranks of a node share memory
  std::optional<theory::Machine> machine;
  std::vector<Recompute> modes = {};  ///< of recomputation, for a search to choose from; empty: the setting's
  theory::SearchOptions search_options() const { return {.memory_bytes = memory_bytes, .dtype = dtype, .modes = modes}; }
};

PlanPoint plan_point(const PlanQuestion& question, const theory::Spread& spread);
/// What a search found, with its traffic and FLOPs.
PlanPoint plan_point(const PlanQuestion& question, const theory::Candidate& candidate);

/// {layout, seq, batch, memory_peak_bytes, traffic_bytes, tokens_per_s, fits, why} and more: label, alike (labels), recompute,
/// tp, sp, ranks, config, parameters (of the model), traffic_bytes_per_rank, flops, step_seconds, exposed_seconds, mfu, bound_by.
/// memory_peak_bytes is of the rank that holds most; traffic_bytes the sum over all ranks, traffic_bytes_per_rank their mean, as
/// the table has it; flops are the busiest rank's. `means` says so in the row itself. null where nothing is known.
nlohmann::ordered_json plan_json(const PlanQuestion& question, const PlanPoint& point);

/// Tables II to IV of the paper for these layouts, in lines.
std::vector<std::string> plan_tables(const PlanQuestion& question, const std::vector<PlanPoint>& points);
/// "paper-7b: h 4096, …; B 1, S 8192, bf16, recompute none".
std::string describe(const PlanQuestion& question);

/// The search's table: at most `top` of each kind (0: all), in lines.
std::vector<std::string> search_table(const PlanQuestion& question, const std::vector<PlanPoint>& points, std::size_t top);
/// Why nothing fits, and what would, in lines.
std::vector<std::string> remedy_lines(const PlanQuestion& question, const theory::Remedies& remedies);
/// {layout, recompute, mem_bytes, gpus, batch, seq}: the same; null for what doesn't help.
nlohmann::ordered_json remedy_json(const theory::Remedies& remedies);

}  // namespace tsprun::launcher
