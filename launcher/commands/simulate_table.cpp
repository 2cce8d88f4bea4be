#include "launcher/commands/simulate.h"
#include "launcher/counts_json.h"
#include "launcher/plan/amounts.h"
#include "launcher/plan/csv.h"
#include "launcher/plan/text_table.h"
#include "layers/theory/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

/// Figures of a row that stand in CSV under their own names.
constexpr std::array<std::string_view, 6> kFigures = {"seconds",         "tokens_per_s",    "mfu",
                                                      "compute_seconds", "exposed_seconds", "binds"};

double number(const ordered_json& row, const char* field) { return row.at(field).get<double>(); }

bool is_played(const ordered_json& row) { return row.at("why").get_ref<const std::string&>().empty(); }

/// Returns the kind of link that was busy for the largest share of the time; null if nothing moved.
const ordered_json* busiest(const ordered_json& row) {
  const ordered_json* most = nullptr;
  for (const ordered_json& link : row.at("links")) {
    if (most == nullptr || number(link, "busy") > number(*most, "busy")) most = &link;
  }
  return most;
}

/// Returns whether rows differ in a field.
bool differs(const ordered_json& rows, const char* field) {
  return std::ranges::any_of(rows, [&](const ordered_json& row) { return row.at(field) != rows.front().at(field); });
}

}  // namespace

ordered_json simulate_json(const SimulatePoint& point, const theory::Machine& machine, bool training,
                           const theory::Simulated* played, double wall) {
  ordered_json row = {{"layout", point.layout.label()},
                      {"gpus", point.layout.ranks()},
                      {"config", point.model.shape.name.empty() ? point.model.config : point.model.shape.name},
                      {"seq", point.model.sequence.value},
                      {"batch", point.model.batch.value},
                      {"why", point.why}};
  if (played == nullptr) return row;
  const Setting setting = point.model.setting();
  const double flops = training ? theory::model_flops(setting) : theory::forward_flops(setting);
  ordered_json received = ordered_json::object();
  for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
    received[std::string(tsprun::name(static_cast<Purpose>(purpose)))] = played->received[purpose];
  }
  ordered_json links = ordered_json::array();
  for (const theory::LinkUse& link : played->links)
    links.push_back({{"kind", link.kind}, {"busy", link.busy}, {"bytes", link.bytes}});
  row.update({{"seconds", played->seconds},
              {"tokens_per_s", real(setting.tokens()) / played->seconds},
              {"mfu", flops / (played->seconds * point.layout.ranks() * *machine.flops(point.model.dtype))},
              {"compute_seconds", played->compute_seconds},
              {"exposed_seconds", played->exposed_seconds},
              {"binds", played->binds},
              {"fullest_rank", played->fullest},
              {"memory_peak_bytes", memory_json(played->memory_peaks)},
              {"traffic_bytes", received},
              {"links", links},
              {"messages", played->messages},
              {"classes", played->played},
              {"wall_seconds", wall}});
  return row;
}

std::vector<std::string> simulate_table(const ordered_json& rows, const theory::Machine& machine) {
  const bool any_refused = !std::ranges::all_of(rows, is_played);
  std::vector<std::string> heads = {"layout"};
  for (const auto& [field, head] : {std::pair("config", "config"), std::pair("batch", "B"), std::pair("seq", "S")}) {
    if (differs(rows, field)) heads.emplace_back(head);
  }
  const std::size_t settings = heads.size();
  heads.insert(heads.end(), {"step ms", "tokens/s", "MFU", "compute ms", "exposed ms", "memory", "binds", "busiest link"});
  const std::size_t words = heads.size() - 2;
  if (any_refused) heads.emplace_back("why");
  TextTable table(heads);
  table.left_from(words);
  std::vector<std::string> remarks;
  for (const ordered_json& row : rows) {
    std::vector<std::string> cells = {row.at("layout")};
    if (differs(rows, "config")) cells.push_back(row.at("config"));
    for (const char* field : {"batch", "seq"}) {
      if (differs(rows, field)) cells.push_back(row.at(field).dump());
    }
    if (!is_played(row)) {
      cells.resize(heads.size() - 1, "-");
      cells.push_back(row.at("why"));
      table.row(std::move(cells));
      continue;
    }
    const ordered_json* busy = busiest(row);
    const auto total = number(row.at("memory_peak_bytes"), "total");
    cells.insert(cells.end(),
                 {fmt::format("{:.2f}", 1e3 * number(row, "seconds")), fmt::format("{:.0f}", number(row, "tokens_per_s")),
                  fmt::format("{:.1f} %", 100 * number(row, "mfu")), fmt::format("{:.2f}", 1e3 * number(row, "compute_seconds")),
                  fmt::format("{:.2f}", 1e3 * number(row, "exposed_seconds")), readable_bytes(total), row.at("binds"),
                  busy == nullptr ? "none"
                                  : fmt::format("{} ({:.0f} %)", busy->at("kind").get_ref<const std::string&>(),
                                                100 * number(*busy, "busy"))});
    if (any_refused) cells.emplace_back();
    std::string which = fmt::format("{}", fmt::join(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(settings), ", "));
    table.row(std::move(cells));
    if (number(row, "mfu") > 1)
      remarks.push_back(fmt::format("{}: MFU above 100 %: the machine's efficiency or its peak is too high", which));
    if (total > machine.memory_bytes) {
      remarks.push_back(fmt::format("{}: rank {} needs {}, and a GPU has {}", which, row.at("fullest_rank").dump(),
                                    readable_bytes(total), readable_bytes(machine.memory_bytes)));
    }
  }
  std::vector<std::string> lines = table.lines();
  lines.insert(lines.end(), remarks.begin(), remarks.end());
  return lines;
}

std::string simulate_csv(const ordered_json& rows) {
  std::string csv = fmt::format("layout,gpus,config,batch,seq,{}", fmt::join(kFigures, ","));
  for (std::size_t i = 0; i < kCategories; ++i) csv += fmt::format(",{}_bytes", name(static_cast<Category>(i)));
  csv += ",total_bytes,received_bytes,busiest_link,busiest_share,messages,classes,why\n";
  for (const ordered_json& row : rows) {
    std::vector<std::string> cells = {csv_cell(row.at("layout")), row.at("gpus").dump(), csv_cell(row.at("config")),
                                      row.at("batch").dump(), row.at("seq").dump()};
    if (is_played(row)) {
      for (const std::string_view figure : kFigures) {
        const ordered_json& value = row.at(std::string(figure));
        cells.push_back(value.is_string() ? csv_cell(value) : value.dump());
      }
      const ordered_json& memory = row.at("memory_peak_bytes");
      for (std::size_t i = 0; i < kCategories; ++i)
        cells.push_back(memory.at(std::string(name(static_cast<Category>(i)))).dump());
      cells.push_back(memory.at("total").dump());
      std::uint64_t received = 0;
      for (const ordered_json& bytes : row.at("traffic_bytes")) received += bytes.get<std::uint64_t>();
      cells.push_back(std::to_string(received));
      const ordered_json* busy = busiest(row);
      cells.push_back(busy == nullptr ? "" : csv_cell(busy->at("kind")));
      cells.push_back(busy == nullptr ? "0" : busy->at("busy").dump());
      for (const char* field : {"messages", "classes"}) cells.push_back(row.at(field).dump());
    }
    cells.resize(5 + kFigures.size() + kCategories + 6);
    cells.push_back(csv_cell(row.at("why")));
    csv += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return csv;
}

}  // namespace tsprun::detail::launcher
