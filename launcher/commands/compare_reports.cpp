// Flattens reports into values by path, and pairs those that are at the same place.
#include "launcher/commands/compare_reports.h"

#include "launcher/refuse.h"
#include "layers/io/file.h"
#include "layers/io/json_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;
using Values = std::vector<std::pair<std::string, ordered_json>>;

constexpr std::uintmax_t kLargestCompared = std::uintmax_t{64} << 20;

/// Adds what stands for a list of steps.
void take_steps(const ordered_json& steps, const std::string& path, Values& into) {
  into.emplace_back(path + ".count", steps.size());
  for (const std::string& field : {std::string("seconds"), std::string("tokens_per_s")}) {
    std::vector<double> values;
    for (const ordered_json& step : steps) {
      if (step.is_object() && step.contains(field) && step[field].is_number()) values.push_back(step[field]);
    }
    if (values.empty()) continue;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    into.emplace_back(fmt::format("{}.median_{}", path, field), *middle);
  }
  if (steps.empty() || !steps.front().is_object() || !steps.front().contains("loss") || !steps.back().contains("loss")) return;
  into.emplace_back(path + ".first_loss", steps.front()["loss"]);
  into.emplace_back(path + ".last_loss", steps.back()["loss"]);
}

void take(const ordered_json& value, const std::string& path, Values& into) {
  if (value.is_object()) {
    for (const auto& [key, each] : value.items()) {
      const std::string inner = path.empty() ? key : fmt::format("{}.{}", path, key);
      if (path.empty() && key == "steps" && each.is_array()) take_steps(each, inner, into);
      else take(each, inner, into);
    }
  } else if (value.is_array() && std::ranges::none_of(value, [](const ordered_json& each) { return each.is_structured(); })) {
    into.emplace_back(path, value);  // a list of numbers or words is one value
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      const ordered_json& each = value[i];
      // Options stand by their names.
      if (each.is_object() && each.size() == 2 && each.contains("name") && each.contains("value") && each["name"].is_string())
        take(each["value"], path + "." + each["name"].get<std::string>(), into);
      else take(each, fmt::format("{}[{}]", path, i), into);
    }
  } else if (!value.is_null()) {
    into.emplace_back(path, value);
  }
}

/// Returns a value for a line of people's, cut where it is long: the report of the comparison has all of it.
std::string shown_cell(const ordered_json& value) {
  if (value.is_null()) return "-";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (!value.is_array()) return shown(value.is_string() ? value.get<std::string>() : value.dump());
  std::vector<std::string> words;
  for (const ordered_json& each : value) words.push_back(each.is_string() ? each.get<std::string>() : each.dump());
  return shown(fmt::format("{}", fmt::join(words, " ")));
}

}  // namespace

ordered_json read_report(const std::string& file) {
  const std::string text = file::read_text(file, kLargestCompared, "a report");
  const std::string where = fmt::format("compare {}", printable(file));
  static_cast<void>(parse_json(text, where));  // refuses what is nested too deep, for instance
  ordered_json report = ordered_json::parse(text);
  if (!report.is_object() || !report.contains("command"))
    refuse(fmt::format("{}: it is no report; tsprun COMMAND --json FILE writes one", where));
  return report;
}

std::vector<ReportDifference> report_differences(const ordered_json& first, const ordered_json& second) {
  Values ours;
  Values theirs;
  take(first, "", ours);
  take(second, "", theirs);
  std::map<std::string, const ordered_json*> of_second;
  for (const auto& [path, value] : theirs) of_second.emplace(path, &value);
  std::vector<ReportDifference> differences;
  for (const auto& [path, value] : ours) {
    const auto there = of_second.find(path);
    if (there == of_second.end()) {
      differences.push_back({path, value, nullptr});
      continue;
    }
    if (*there->second != value) differences.push_back({path, value, *there->second});
    of_second.erase(there);
  }
  for (const auto& [path, value] : theirs) {
    if (of_second.contains(path)) differences.push_back({path, nullptr, value});
  }
  return differences;
}

Table differences_table(const std::vector<ReportDifference>& differences, const std::string& first, const std::string& second) {
  // One column, so that both values stand in one line where lines are short.
  Table table({{"what differs", Align::left}, {fmt::format("{} → {}", shown(first), shown(second)), Align::left}});
  for (const auto& [what, one, other] : differences) {
    std::string values = fmt::format("{} → {}", shown_cell(one), shown_cell(other));
    if (one.is_number() && other.is_number() && one.get<double>() != 0)
      values += fmt::format(" ({:+.1f} %)", 100 * (other.get<double>() / one.get<double>() - 1));
    table.row({shown(what), values});
  }
  return table;
}

}  // namespace tsprun::detail::launcher
