// Two reports beside each other: `tsprun compare a.json b.json`.
#pragma once

#include "launcher/table.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// A value that two reports don't have in common. A key whose value is null counts as one that is missing.
struct ReportDifference {
  std::string what;              ///< where it stands: "origin.options.--lr", "per_rank[0].seconds.total"
  nlohmann::ordered_json first;  ///< null: only the second has it
  nlohmann::ordered_json second;
};

/// Reads a report of --json. Throws Error(refused): it can't be read, or is none.
nlohmann::ordered_json read_report(const std::string& file);

/// Returns the values in which two reports differ, in the order of the first, then those that only the second has. Of the steps
/// their number, the medians of their seconds and tokens a second and their first and last loss count; a list of texts counts as
/// one.
std::vector<ReportDifference> report_differences(const nlohmann::ordered_json& first, const nlohmann::ordered_json& second);

/// Returns a row for each difference; of two numbers it says by how much the second is larger. `first`, `second`: names of the
/// reports.
Table differences_table(const std::vector<ReportDifference>& differences, const std::string& first, const std::string& second);

}  // namespace tsprun::detail::launcher
