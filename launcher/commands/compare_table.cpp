// Turns the reports of `compare`'s jobs into rows of the report and a table.
#include "launcher/commands/compare.h"
#include "launcher/model/layouts.h"
#include "launcher/plan/points.h"
#include "launcher/report.h"
#include "layers/layout/check_layout.h"
#include "layers/theory/peaks.h"
#include "transport/factory.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

constexpr double kMiB = 1 << 20;

/// Returns received bytes by purpose, summed over ranks.
ordered_json summed_traffic(const ordered_json& per_rank) {
  ordered_json sum;
  for (const ordered_json& rank : per_rank) {
    for (const auto& [pass, purposes] : rank.at("traffic_bytes").items()) {
      for (const auto& [purpose, bytes] : purposes.items()) {
        ordered_json& into = sum[pass][purpose]["received"];
        into = (into.is_null() ? 0 : into.get<std::uint64_t>()) + bytes.at("received").get<std::uint64_t>();
      }
    }
  }
  return sum;
}

/// Purpose of small sums, whose bytes depend on the algorithm: they have a column of their own.
const std::string kOther(name(Purpose::other));

/// Returns the bytes received in a pass for all purposes but `other`.
std::uint64_t total(const ordered_json& traffic, const char* pass) {
  std::uint64_t sum = 0;
  for (const auto& [purpose, bytes] : traffic.at(pass).items()) {
    if (purpose != kOther) sum += bytes.at("received").get<std::uint64_t>();
  }
  return sum;
}

/// Returns the bytes received for `other`, in all passes that there are.
std::uint64_t other(const ordered_json& traffic) {
  std::uint64_t sum = 0;
  for (const auto& [pass, purposes] : traffic.items()) {
    if (purposes.contains(kOther)) sum += purposes.at(kOther).at("received").get<std::uint64_t>();
  }
  return sum;
}

/// Returns the memory peaks of the rank whose total is highest; null if there is none.
ordered_json fullest(const ordered_json& per_rank) {
  ordered_json most;
  for (const ordered_json& rank : per_rank) {
    const ordered_json& memory = rank.at("memory_peak_bytes");
    if (most.is_null() || memory.at("total") > most.at("total")) most = memory;
  }
  return most;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Layout computed_layout(const ComparePoint& point) {
  return point.global.layout->axes.empty() ? Layout{} : layout_of(point.global);
}

/// Returns the longest sequence that fits under --mem-per-rank, at most the model's; 0 if none does.
std::size_t longest_sequence(const ComparePoint& point, bool forward_only) {
  const Layout layout = computed_layout(point);
  Setting setting = point.model.setting();
  if (!why_impossible(setting, layout).empty()) return 0;
  const auto fits = [&](std::size_t sequence) {
    setting.sequence = sequence;
    if (point.model.reset_attention) setting.documents = {static_cast<std::uint32_t>(sequence)};
    return theory::fits(theory::MeshSetting{setting, layout}, point.global.mem_per_rank,
                        {.threads = static_cast<std::size_t>(point.global.threads),
                         .training = !forward_only,
                         .nodes = point.global.nodes,
                         .share = within_node(point.global.intra).views});
  };
  std::size_t low = 0;
  std::size_t high = point.model.shape.max_positions;
  while (low < high) {
    const std::size_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

/// Returns bytes in MiB, "-" for null.
Cell mebibytes(const ordered_json& bytes) {
  return {bytes.is_null() ? "-" : fmt::format("{:.2f}", static_cast<double>(bytes.get<std::uint64_t>()) / kMiB), bytes};
}

/// Appends measured bytes, as text "12.50 =" if they are as forecast to the byte, else both, and the forecast for CSV.
/// `count` counts either; `known`: there is something to count.
template <class Count>
void append_beside(std::vector<Cell>& cells, const ordered_json& row, const Count& count, bool known) {
  const Cell measured = mebibytes(known ? ordered_json(count(row.at("traffic_bytes"))) : ordered_json());
  const Cell forecast = mebibytes(known ? ordered_json(count(row.at("theory").at("traffic_bytes"))) : ordered_json());
  cells.push_back(measured);
  if (known) cells.back().text += measured.value == forecast.value ? " =" : " / " + forecast.text;
  cells.push_back(forecast);
}

}  // namespace

ordered_json compare_json(const ComparePoint& point, const ordered_json& job, bool forward_only) {
  ordered_json row;
  row["layout"] = layout_json(point.global.layout);
  const Layout layout = computed_layout(point);
  row["label"] = layout.axes.empty() ? point.layout : layout.label();
  row["ranks"] = point.global.ranks.value;
  const bool known = point.model.shape.hidden != 0;
  row["config"] = known ? point.model.shape.name : point.model.config;
  row["hidden"] = known ? ordered_json(point.model.shape.hidden) : ordered_json(nullptr);
  row["parameters"] = known ? ordered_json(theory::held({.setting = {.model = point.model.shape}, .layout = {}}, {}).total())
                            : ordered_json(nullptr);
  row["seq"] = point.model.sequence.value;
  row["batch"] = point.model.batch.value;
  row["micro_batches"] = point.model.micro_batches.value;
  row["forward_only"] = forward_only;
  row["threads"] = point.global.threads.value;
  if (point.global.link_gbps.given()) row["link_gbps"] = point.global.link_gbps.value;
  row["memory_peak_bytes"] = nullptr;
  row["traffic_bytes"] = nullptr;
  row["tokens_per_s"] = nullptr;
  row["fits"] = point.why.empty();
  row["why"] = point.why;
  if (known && point.global.mem_per_rank != 0) row["longest_seq"] = longest_sequence(point, forward_only);
  const ordered_json& failure = job.contains("failure") ? job.at("failure") : ordered_json();
  if (failure.is_object()) {
    row["fits"] = failure.at("kind") == "out_of_memory" ? ordered_json(false) : ordered_json(nullptr);
    row["why"] = fmt::format("{}: {}", failure.at("kind").get<std::string>(), failure.at("detail").get<std::string>());
  }
  if (!job.contains("per_rank") || failure.is_object()) return row;

  const ordered_json& per_rank = job.at("per_rank");
  row["memory_peak_bytes"] = fullest(per_rank);
  row["traffic_bytes"] = summed_traffic(per_rank);
  std::vector<double> seconds;
  for (const ordered_json& step : job.at("steps")) seconds.push_back(step.at("seconds").get<double>());
  row["step_seconds"] = median(seconds);
  row["tokens_per_s"] = static_cast<double>(point.model.batch * point.model.sequence) / median(seconds);
  double most = 0;
  double least = 1;
  for (const ordered_json& rank : per_rank) {
    const ordered_json& times = rank.at("seconds");
    const double whole = times.at("total").get<double>();
    const double share = whole > 0 ? times.at("exposed_communication").get<double>() / whole : 0;
    most = std::max(most, share);
    least = std::min(least, share);
  }
  row["transports"] = job.at("transports");
  row["exposed_share"] = most;
  row["exposed_share_least"] = least;
  const ordered_json& predicted = job.at("theory").at("per_rank");
  row["theory"] = {{"memory_peak_bytes", fullest(predicted)},
                   {"traffic_bytes", job.at("theory").at("all_ranks").at("traffic_bytes")}};
  if (forward_only) {
    row["traffic_bytes"].erase("backward");
    row["theory"]["traffic_bytes"].erase("backward");
  }
  return row;
}

Table compare_table(const ordered_json& rows) {
  const bool longest = std::ranges::any_of(rows, [](const ordered_json& row) { return row.contains("longest_seq"); });
  const auto differs = [&](const char* field) {
    return std::ranges::any_of(rows, [&](const ordered_json& row) { return row.at(field) != rows.front().at(field); });
  };
  std::vector<Column> columns = {{"layout", Align::left, "layout"},
                                 {"", Align::right, "ranks"},
                                 {"config", Align::right, "config", differs("config")},
                                 {"B", Align::right, "batch", differs("batch")},
                                 {"S", Align::right, "seq", differs("seq")},
                                 {"", Align::right, "forward_only"}};
  for (std::size_t i = 0; i < kCategories; ++i) {
    const auto category = name(static_cast<Category>(i));
    columns.push_back({category, Align::right, fmt::format("{}_bytes", category)});
  }
  for (const Column& column : std::initializer_list<Column>{{"total", Align::right, "total_bytes"},
                                                            "forecast",
                                                            {"received fwd", Align::right, "forward_received_bytes"},
                                                            {"", Align::right, "forward_formula_bytes"},
                                                            {"received bwd", Align::right, "backward_received_bytes"},
                                                            {"", Align::right, "backward_formula_bytes"},
                                                            {"other", Align::right, "other_received_bytes"},
                                                            {"tokens/s", Align::right, "tokens_per_s"},
                                                            {"exposed", Align::right, "exposed_share"},
                                                            longest ? "longest S" : "",
                                                            {"fits", Align::right, "fits"},
                                                            {"why", Align::left, "why"},
                                                            {"", Align::right, "forecast_bytes"},
                                                            {"", Align::right, "longest_seq"},
                                                            {"", Align::right, "exposed_share_least"}})
    columns.push_back(column);
  Table table(columns);
  const auto if_any = [](const ordered_json& row, const char* field) {
    return row.contains(field) ? row.at(field) : ordered_json();
  };
  for (const ordered_json& row : rows) {
    std::vector<Cell> cells;
    for (const char* field : {"label", "ranks", "config", "batch", "seq", "forward_only"}) cells.emplace_back(row.at(field));
    const ordered_json& memory = row.at("memory_peak_bytes");
    const auto peak = [](const ordered_json& of, std::string_view category) {
      return of.is_null() ? of : of.at(std::string(category));
    };
    for (std::size_t i = 0; i < kCategories; ++i) cells.push_back(mebibytes(peak(memory, name(static_cast<Category>(i)))));
    cells.push_back(mebibytes(peak(memory, "total")));
    const ordered_json forecast = row.contains("theory") ? row.at("theory").at("memory_peak_bytes").at("total") : ordered_json();
    cells.push_back(mebibytes(forecast));
    for (const char* pass : {"forward", "backward"}) {
      const auto count = [&](const ordered_json& traffic) { return total(traffic, pass); };
      append_beside(cells, row, count, row.at("traffic_bytes").contains(pass));
    }
    append_beside(cells, row, other, !row.at("traffic_bytes").is_null());
    cells.pop_back();
    const ordered_json& speed = row.at("tokens_per_s");
    cells.emplace_back(speed.is_null() ? "-" : fmt::format("{:.0f}", speed.get<double>()), speed);
    const ordered_json least = if_any(row, "exposed_share_least");
    const ordered_json most = if_any(row, "exposed_share");
    cells.emplace_back(most.is_null() ? "-" : fmt::format("{:.1f}-{:.1f}%", 100 * least.get<double>(), 100 * most.get<double>()),
                       most);
    cells.emplace_back(if_any(row, "longest_seq"));
    const ordered_json& fits = row.at("fits");
    cells.emplace_back(fits.is_null() ? "?" : fits.get<bool>() ? "yes" : "no", fits);
    for (const ordered_json& value : {row.at("why"), forecast, if_any(row, "longest_seq"), least}) cells.emplace_back(value);
    table.row(std::move(cells));
  }
  return table;
}

}  // namespace tsprun::detail::launcher
