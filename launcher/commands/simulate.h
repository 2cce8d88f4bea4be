// Results of `tsprun simulate` as a table, JSON and CSV.
#pragma once

#include "launcher/model/model_options.h"
#include "launcher/table.h"
#include "layers/layout/layout.h"
#include "layers/theory/machine.h"
#include "layers/theory/simulate.h"

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// One setting to play, or the reason why it can't be played.
struct SimulatePoint {
  ModelCommandOptions model;
  Layout layout;
  std::string typed;     ///< the ranks, as they were typed: "--layout tsp=4"
  std::string why;       ///< why it can't be played; empty: it can
  bool forward = false;  ///< a forward pass instead of a training step
  double measured = 0;   ///< seconds of the step that was measured; 0: none was
  double link_gbps = 0;  ///< speed of the links where it was measured; 0: the machine's
};

/// Returns the report's row for a point. `played` is null if it can't be played. `wall`: seconds that playing took.
nlohmann::ordered_json simulate_json(const SimulatePoint& point, const theory::Machine& machine, const theory::Simulated* played,
                                     double wall);
/// Returns the rows as a table, for people and as CSV.
Table simulate_table(const nlohmann::ordered_json& rows);
/// Returns lines that say how the points' bytes move, and which rows don't fit or can't be believed. `rows`: the points'.
std::vector<std::string> simulate_remarks(std::span<const SimulatePoint> points, const nlohmann::ordered_json& rows,
                                          const theory::Machine& machine, bool by_rails);

/// Returns the table of what was measured and what was played: rows that have `measured_seconds`.
Table against_table(const nlohmann::ordered_json& rows);
/// Returns how far what was played is from what was measured: `median_error` and `largest_error` (shares of the measured time),
/// and of the `pairs` of rows of equal sizes whose measured times differ by 10 %, how many were `kept` in order. Null if no row
/// was played.
nlohmann::ordered_json against_json(const nlohmann::ordered_json& rows);
/// Returns the same as a sentence.
std::string describe_against(const nlohmann::ordered_json& against);

}  // namespace tsprun::detail::launcher
