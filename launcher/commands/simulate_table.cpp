// Turns what `simulate` has played into rows of the report, a table, and remarks on them.
#include "launcher/commands/simulate.h"
#include "launcher/counts_json.h"
#include "launcher/plan/amounts.h"
#include "layers/theory/remarks.h"
#include "layers/theory/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

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

ordered_json simulate_json(const SimulatePoint& point, const theory::Machine& machine, const theory::Simulated* played,
                           double wall) {
  ordered_json row = {{"layout", point.layout.label()},
                      {"gpus", point.layout.ranks()},
                      {"config", point.model.shape.name.empty() ? point.model.config : point.model.shape.name},
                      {"seq", point.model.sequence.value},
                      {"batch", point.model.batch.value},
                      {"micro_batches", point.model.micro_batches.value},
                      {"why", point.why}};
  if (!point.model.lengths.empty()) row["documents"] = point.model.lengths;
  if (played == nullptr) return row;
  const Setting setting = point.model.setting();
  const double flops = point.forward ? theory::forward_flops(setting, {}, {}).total() : theory::model_flops(setting);
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
              {"traffic_bytes", by_purpose([&](Purpose purpose) { return played->received[static_cast<std::size_t>(purpose)]; })},
              {"links", links},
              {"messages", played->messages},
              {"classes", played->played},
              {"classes_difference", played->ranks_difference},
              {"layers", played->layers},
              {"layers_difference", played->layers_difference},
              {"wall_seconds", wall}});
  if (point.measured > 0) row.update({{"measured_seconds", point.measured}, {"error", played->seconds / point.measured - 1}});
  if (point.link_gbps > 0) row["link_gbps"] = point.link_gbps;
  return row;
}

Table simulate_table(const ordered_json& rows) {
  using enum Align;
  const auto if_differs = [&](const char* field, const char* head) { return differs(rows, field) ? head : ""; };
  std::vector<Column> columns = {{"layout", left, "layout"},
                                 {"", right, "gpus"},
                                 {if_differs("config", "config"), right, "config", true},
                                 {if_differs("batch", "B"), right, "batch", true},
                                 {if_differs("seq", "S"), right, "seq", true},
                                 {"step ms", right, "seconds"},
                                 {"tokens/s", right, "tokens_per_s"},
                                 {"MFU", right, "mfu"},
                                 {"compute ms", right, "compute_seconds"},
                                 {"exposed ms", right, "exposed_seconds"},
                                 {"memory"},
                                 {"binds", left, "binds"},
                                 {"busiest link", left}};
  for (std::size_t i = 0; i < kCategories; ++i) {
    const std::string category(name(static_cast<Category>(i)));
    columns.emplace_back(category, right, category + "_bytes");
  }
  for (const char* field : {"total_bytes", "received_bytes", "busiest_link", "busiest_share", "messages", "classes"})
    columns.emplace_back("", right, field);
  columns.emplace_back(std::ranges::all_of(rows, is_played) ? "" : "why", left, "why");
  Table table(columns);
  for (const ordered_json& row : rows) {
    std::vector<Cell> cells;
    for (const char* field : {"layout", "gpus", "config", "batch", "seq"}) cells.emplace_back(row.at(field));
    if (!is_played(row)) {
      cells.resize(columns.size() - 1, ordered_json());
      cells.emplace_back(row.at("why"));
      table.row(std::move(cells));
      continue;
    }
    const auto scaled = [&](const char* field, double scale, fmt::format_string<double> format) {
      cells.emplace_back(fmt::format(format, scale * number(row, field)), row.at(field));
    };
    scaled("seconds", 1e3, "{:.2f}");
    scaled("tokens_per_s", 1, "{:.0f}");
    scaled("mfu", 100, "{:.1f} %");
    scaled("compute_seconds", 1e3, "{:.2f}");
    scaled("exposed_seconds", 1e3, "{:.2f}");
    const ordered_json& memory = row.at("memory_peak_bytes");
    const ordered_json* busy = busiest(row);
    cells.emplace_back(readable_bytes(number(memory, "total")));
    cells.emplace_back(row.at("binds"));
    cells.emplace_back(busy == nullptr ? "none"
                                       : fmt::format("{} ({:.0f} %)", busy->at("kind").get_ref<const std::string&>(),
                                                     100 * number(*busy, "busy")));
    for (std::size_t i = 0; i < kCategories; ++i) {
      const ordered_json& bytes = memory.at(std::string(name(static_cast<Category>(i))));
      cells.emplace_back(readable_bytes(bytes.get<double>()), bytes);
    }
    cells.emplace_back(memory.at("total"));
    std::uint64_t received = 0;
    for (const ordered_json& bytes : row.at("traffic_bytes")) received += bytes.get<std::uint64_t>();
    cells.emplace_back(ordered_json(received));
    cells.emplace_back(busy == nullptr ? ordered_json() : busy->at("kind"));
    cells.emplace_back(busy == nullptr ? ordered_json(0) : busy->at("busy"));
    for (const char* field : {"messages", "classes", "why"}) cells.emplace_back(row.at(field));
    table.row(std::move(cells));
  }
  return table;
}

std::vector<std::string> simulate_remarks(std::span<const SimulatePoint> points, const ordered_json& rows,
                                          const theory::Machine& machine, bool by_rails) {
  std::vector<std::string> remarks;
  std::vector<Layout> layouts;
  for (const SimulatePoint& point : points) {
    if (point.why.empty()) layouts.push_back(point.layout);
  }
  remarks.push_back(theory::sums_remark(layouts, machine, by_rails));
  const auto possible = std::ranges::find(points, std::string(), &SimulatePoint::why);
  if (possible != points.end()) remarks.push_back(theory::ring_remark(possible->model.setting(), layouts, machine));
  std::erase(remarks, "");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ordered_json& row = rows[i];
    if (!is_played(row)) continue;
    std::string which = row.at("layout");
    for (const char* field : {"config", "batch", "seq"}) {
      if (differs(rows, field)) which += ", " + Cell(row.at(field)).text;
    }
    for (const std::string& few :
         {theory::layers_remark(row.at("layers"), points[i].model.setting().model.layers, number(row, "layers_difference")),
          theory::ranks_remark(row.at("classes"), points[i].layout.ranks(), number(row, "classes_difference"))}) {
      if (!few.empty()) remarks.push_back(fmt::format("{}: {}; --fold off plays all", which, few));
    }
    if (number(row, "mfu") > 1)
      remarks.push_back(fmt::format("{}: MFU above 100 %: the machine's efficiency or its peak is too high", which));
    if (const double total = number(row.at("memory_peak_bytes"), "total"); total > machine.memory_bytes) {
      remarks.push_back(fmt::format("{}: rank {} needs {}, and a GPU has {}", which, row.at("fullest_rank").dump(),
                                    readable_bytes(total), readable_bytes(machine.memory_bytes)));
    }
  }
  return remarks;
}

}  // namespace tsprun::detail::launcher
