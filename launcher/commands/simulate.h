// Results of `tsprun simulate` as a table, JSON and CSV.
#pragma once

#include "launcher/model/model_options.h"
#include "launcher/table.h"
#include "layers/layout/layout.h"
#include "layers/theory/machine.h"
#include "layers/theory/simulate.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// One setting to play, or the reason why it can't be played.
struct SimulatePoint {
  ModelCommandOptions model;
  Layout layout;
  std::string typed;  ///< the ranks, as they were typed: "--layout tsp=4"
  std::string why;    ///< why it can't be played; empty: it can
};

/// Returns the report's row for a point. `played` is null if it can't be played. `wall`: seconds that playing took.
nlohmann::ordered_json simulate_json(const SimulatePoint& point, const theory::Machine& machine, bool training,
                                     const theory::Simulated* played, double wall);
/// Returns the rows as a table, for people and as CSV.
Table simulate_table(const nlohmann::ordered_json& rows);
/// Returns lines that say which rows don't fit or can't be believed.
std::vector<std::string> simulate_remarks(const nlohmann::ordered_json& rows, const theory::Machine& machine);

}  // namespace tsprun::detail::launcher
