// Turns the reports of `compare`'s jobs into rows of the report, a table, and CSV.
#include "launcher/commands/compare.h"
#include "launcher/model/layouts.h"
#include "launcher/plan/csv.h"
#include "launcher/plan/points.h"
#include "launcher/plan/text_table.h"
#include "launcher/report.h"
#include "layers/layout/check_layout.h"
#include "layers/theory/peaks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
    return theory::fits(theory::MeshSetting{setting, layout}, point.global.mem_per_rank,
                        {.threads = static_cast<std::size_t>(point.global.threads), .training = !forward_only});
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

std::string mebibytes_or_dash(const ordered_json& bytes) {
  return bytes.is_null() ? "-" : fmt::format("{:.2f}", static_cast<double>(bytes.get<std::uint64_t>()) / kMiB);
}

/// Returns "12.50 =" if the measured bytes equal the formula's to the byte, else both. `count` counts either.
template <class Count>
std::string beside(const ordered_json& row, const Count& count) {
  const std::uint64_t measured = count(row.at("traffic_bytes"));
  const std::uint64_t formula = count(row.at("theory").at("traffic_bytes"));
  if (measured == formula) return mebibytes_or_dash(measured) + " =";
  return fmt::format("{} / {}", mebibytes_or_dash(measured), mebibytes_or_dash(formula));
}

std::string pass_beside(const ordered_json& row, const char* pass) {
  if (row.at("traffic_bytes").is_null() || !row.at("traffic_bytes").contains(pass)) return "-";
  return beside(row, [&](const ordered_json& traffic) { return total(traffic, pass); });
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
  row["forward_only"] = forward_only;
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

std::vector<std::string> compare_table(const ordered_json& rows) {
  std::vector<std::string> lines = {
      "memory: peak MiB of the rank that holds most, beside the forecast of it; received: MiB of all ranks in one step, \"=\": "
      "the",
      "formula to the byte, else measured / formula; other: norm gains, loss, statistics, both passes;",
      "tokens/s: median step; exposed: the share of its time for which computing waits for others, of the rank that waits least "
      "and of that which waits most"};
  const bool longest = std::any_of(rows.begin(), rows.end(), [](const ordered_json& row) { return row.contains("longest_seq"); });
  std::vector<std::string> heads = {
      "layout",      "config",        "B",         "S",     "parameters", "gradients",    "optimizer",
      "activations", "communication", "workspace", "total", "forecast",   "received fwd", "received bwd",
      "other",       "tokens/s",      "exposed"};
  if (longest) heads.emplace_back("longest S");
  heads.insert(heads.end(), {"fits", "why"});
  TextTable table(heads);
  table.left_from(heads.size() - 1);
  for (const ordered_json& row : rows) {
    std::vector<std::string> cells = {row.at("label"), row.at("config"), std::to_string(row.at("batch").get<std::size_t>()),
                                      std::to_string(row.at("seq").get<std::size_t>())};
    const ordered_json& memory = row.at("memory_peak_bytes");
    for (std::size_t i = 0; i < kCategories; ++i) {
      const std::string category(name(static_cast<Category>(i)));
      cells.push_back(memory.is_null() ? "-" : mebibytes_or_dash(memory.at(category)));
    }
    cells.push_back(memory.is_null() ? "-" : mebibytes_or_dash(memory.at("total")));
    cells.push_back(row.contains("theory") ? mebibytes_or_dash(row.at("theory").at("memory_peak_bytes").at("total")) : "-");
    cells.push_back(pass_beside(row, "forward"));
    cells.push_back(pass_beside(row, "backward"));
    cells.push_back(row.at("traffic_bytes").is_null() ? "-" : beside(row, other));
    const ordered_json& speed = row.at("tokens_per_s");
    cells.push_back(speed.is_null() ? "-" : fmt::format("{:.0f}", speed.get<double>()));
    cells.push_back(row.contains("exposed_share")
                        ? fmt::format("{:.1f}-{:.1f}%", 100 * row.at("exposed_share_least").get<double>(),
                                      100 * row.at("exposed_share").get<double>())
                        : "-");
    if (longest) cells.push_back(row.contains("longest_seq") ? std::to_string(row.at("longest_seq").get<std::size_t>()) : "-");
    cells.push_back(row.at("fits").is_null() ? "?" : row.at("fits").get<bool>() ? "yes" : "no");
    cells.push_back(row.at("why"));
    table.row(std::move(cells));
  }
  for (std::string& line : table.lines()) lines.push_back(std::move(line));
  return lines;
}

std::string compare_csv(const ordered_json& rows) {
  std::string csv = "layout,ranks,config,batch,seq,forward_only";
  for (std::size_t i = 0; i < kCategories; ++i) csv += fmt::format(",{}_bytes", name(static_cast<Category>(i)));
  csv +=
      ",total_bytes,forward_received_bytes,forward_formula_bytes,backward_received_bytes,backward_formula_bytes,"
      "other_received_bytes,tokens_per_s,exposed_share,fits,why,forecast_bytes,longest_seq,exposed_share_least\n";
  for (const ordered_json& row : rows) {
    std::vector<std::string> cells = {csv_cell(row.at("label")), row.at("ranks").dump(), csv_cell(row.at("config")),
                                      row.at("batch").dump(),    row.at("seq").dump(),   row.at("forward_only").dump()};
    const ordered_json& memory = row.at("memory_peak_bytes");
    for (std::size_t i = 0; i < kCategories; ++i)
      cells.push_back(memory.is_null() ? "" : memory.at(std::string(name(static_cast<Category>(i)))).dump());
    cells.push_back(memory.is_null() ? "" : memory.at("total").dump());
    for (const char* pass : {"forward", "backward"}) {
      const bool known = !row.at("traffic_bytes").is_null() && row.at("traffic_bytes").contains(pass);
      cells.push_back(known ? std::to_string(total(row.at("traffic_bytes"), pass)) : "");
      cells.push_back(known ? std::to_string(total(row.at("theory").at("traffic_bytes"), pass)) : "");
    }
    cells.push_back(row.at("traffic_bytes").is_null() ? "" : std::to_string(other(row.at("traffic_bytes"))));
    cells.push_back(row.at("tokens_per_s").is_null() ? "" : row.at("tokens_per_s").dump());
    cells.push_back(row.contains("exposed_share") ? row.at("exposed_share").dump() : "");
    cells.push_back(row.at("fits").is_null() ? "" : row.at("fits").dump());
    cells.push_back(csv_cell(row.at("why")));
    cells.push_back(row.contains("theory") ? row.at("theory").at("memory_peak_bytes").at("total").dump() : "");
    cells.push_back(row.contains("longest_seq") ? row.at("longest_seq").dump() : "");
    cells.push_back(row.contains("exposed_share_least") ? row.at("exposed_share_least").dump() : "");
    csv += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return csv;
}

}  // namespace tsprun::detail::launcher
