// Holds what `simulate` has played against what `compare` has measured.
#include "launcher/commands/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

/// Layouts whose times differ by this factor should be played in the right order.
constexpr double kDiffers = 1.1;

double of(const ordered_json& row, const char* field) { return row.at(field).get<double>(); }

bool is_measured(const ordered_json& row) { return row.contains("measured_seconds"); }

/// Returns whether two rows differ in their layouts only.
bool differ_in_layout_only(const ordered_json& one, const ordered_json& other) {
  const auto same = [&](const char* field) { return one.at(field) == other.at(field); };
  return same("gpus") && same("config") && same("batch") && same("seq") &&
         one.value("link_gbps", 0.0) == other.value("link_gbps", 0.0);
}

}  // namespace

Table against_table(const ordered_json& rows) {
  using enum Align;
  const bool slowed = std::ranges::any_of(rows, [](const ordered_json& row) { return row.contains("link_gbps"); });
  const bool refused = !std::ranges::all_of(rows, is_measured);
  Table table(std::vector<Column>{{"layout", left, "layout"},
                                  {"config", right, "config"},
                                  {"B", right, "batch"},
                                  {"S", right, "seq"},
                                  {slowed ? "links GB/s" : "", right, "link_gbps"},
                                  {"measured ms", right, "measured_seconds"},
                                  {"played ms", right, "seconds"},
                                  {"error", right, "error"},
                                  {refused ? "why" : "", left, "why"}});
  for (const ordered_json& row : rows) {
    std::vector<Cell> cells;
    for (const char* field : {"layout", "config", "batch", "seq"}) cells.emplace_back(row.at(field));
    cells.emplace_back(row.contains("link_gbps") ? row.at("link_gbps") : ordered_json());
    if (is_measured(row)) {
      for (const char* field : {"measured_seconds", "seconds"})
        cells.emplace_back(fmt::format("{:.2f}", 1e3 * of(row, field)), row.at(field));
      cells.emplace_back(fmt::format("{:+.1f} %", 100 * of(row, "error")), row.at("error"));
    } else {
      cells.resize(8, ordered_json());
    }
    cells.emplace_back(row.at("why"));
    table.row(std::move(cells));
  }
  return table;
}

ordered_json against_json(const ordered_json& rows) {
  std::vector<double> errors;
  int pairs = 0;
  int kept = 0;
  for (const ordered_json& row : rows) {
    if (!is_measured(row)) continue;
    errors.push_back(std::abs(of(row, "error")));
    for (const ordered_json& other : rows) {
      if (!is_measured(other) || !differ_in_layout_only(row, other) ||
          of(row, "measured_seconds") * kDiffers > of(other, "measured_seconds"))
        continue;
      ++pairs;
      kept += of(row, "seconds") < of(other, "seconds") ? 1 : 0;
    }
  }
  if (errors.empty()) return nullptr;
  std::ranges::sort(errors);
  const std::size_t half = errors.size() / 2;
  return {{"median_error", errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2},
          {"largest_error", errors.back()},
          {"pairs", pairs},
          {"kept", kept}};
}

std::string describe_against(const ordered_json& against) {
  if (against.is_null()) return "no point could be played";
  return fmt::format(
      "median error {:.1f} %, largest {:.1f} %; of {} pairs of layouts whose times differ by 10 % or more, {} are played in "
      "order",
      100 * of(against, "median_error"), 100 * of(against, "largest_error"), against.at("pairs").dump(),
      against.at("kept").dump());
}

}  // namespace tsprun::detail::launcher
