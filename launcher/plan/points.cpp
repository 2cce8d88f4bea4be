// Asks theory about a layout, and sets the answers out as tables, rows of JSON and advice.
#include "launcher/plan/points.h"

#include "launcher/counts_json.h"
#include "launcher/plan/amounts.h"
#include "launcher/report.h"
#include "launcher/table.h"
#include "layers/layout/check_layout.h"
#include "layers/layout/document_lengths.h"
#include "layers/theory/peaks.h"
#include "layers/theory/remarks.h"
#include "layers/theory/step_counts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr std::size_t kMostColumns = 122;  // of prose

std::string percent(double part) { return fmt::format("{:.1f}%", 100 * part); }

/// Returns the mean over ranks.
ordered_json mean_traffic_json(const theory::PurposeBytes& received, int ranks) {
  return by_purpose([&](Purpose purpose) { return ordered_json{{"received", real(received[purpose]) / ranks}}; });
}

std::vector<std::string> labels_of(const std::vector<Layout>& layouts) {
  std::vector<std::string> labels;
  for (const Layout& layout : layouts) labels.push_back(layout.label());
  return labels;
}

/// Returns all labels of a point: "tp=2,sp=4 or sp=4,tp=2".
std::string all_labels(const PlanPoint& point) {
  std::string text = point.layout.label();
  for (const std::string& label : labels_of(point.alike)) text += " or " + label;
  return text;
}

ordered_json flops_json(const theory::PassFlops& flops) {
  return {{"attention_linear", flops.attention_linear},
          {"attention", flops.attention_core},
          {"mlp", flops.mlp},
          {"head", flops.head},
          {"total", flops.total()}};
}

/// Lines that fit a number of columns.
struct Page {
  std::size_t columns;
  std::vector<std::string> lines;

  void prose(std::string_view text, std::size_t most = static_cast<std::size_t>(-1)) {
    std::ranges::move(wrapped(text, std::min(columns, most), ""), std::back_inserter(lines));
  }
  void table(const Table& table) { std::ranges::move(table.lines(columns), std::back_inserter(lines)); }
};

/// Returns whether a layout fits the memory budget; nothing if there is none.
std::optional<bool> known_fit(const PlanQuestion& question, const PlanPoint& point) {
  if (!point.possible) return false;
  return question.memory_bytes != 0 ? std::optional(point.fits) : std::nullopt;
}

void memory_table(Page& page, const PlanQuestion& question, const std::vector<PlanPoint>& points) {
  page.prose("");
  page.prose(
      "Table III. Memory of the rank that holds most: what the schedule allocates when it runs on a rank that isn't there.");
  page.prose("The peak is of the sum.");
  std::vector<Column> columns = {{"layout", Align::left}};
  for (std::size_t i = 0; i < kCategories; ++i) columns.emplace_back(name(static_cast<Category>(i)));
  columns.insert(columns.end(), {"peak", "fits", {"why", Align::left}});
  Table table(columns);
  for (const PlanPoint& point : points) {
    std::vector<Cell> cells = {point.layout.label()};
    for (std::size_t i = 0; i < kCategories; ++i)
      cells.emplace_back(point.possible ? readable_bytes(real(point.memory.of[i])) : "-");
    cells.emplace_back(point.possible ? readable_bytes(real(point.memory.total)) : "-");
    const std::optional<bool> fits = known_fit(question, point);
    cells.emplace_back(!fits ? "" : *fits ? "yes" : "no");
    cells.emplace_back(point.why);
    table.row(std::move(cells));
  }
  page.table(table);
}

void traffic_table(Page& page, const std::vector<PlanPoint>& points) {
  page.prose("");
  page.prose(
      "Table II. Received in one step by a rank (mean of all), exact but for embedding rows, which depend on the ids: as if "
      "uniform.");
  std::vector<Purpose> purposes;
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    if (std::any_of(points.begin(), points.end(), [&](const PlanPoint& point) {
          return point.traffic.forward[purpose] + point.traffic.backward[purpose] > 0;
        })) {
      purposes.push_back(purpose);
    }
  }
  std::vector<Column> columns = {{"layout", Align::left}, {"pass", Align::right, "", true}};
  for (const Purpose purpose : purposes) columns.emplace_back(name(purpose));
  columns.emplace_back("total");
  Table table(columns);
  for (const PlanPoint& point : points) {
    if (!point.possible) continue;
    for (const bool backward : {false, true}) {
      const theory::PurposeBytes& bytes = backward ? point.traffic.backward : point.traffic.forward;
      const double ranks = point.layout.ranks();
      std::vector<Cell> cells = {backward ? "" : point.layout.label(), backward ? "backward" : "forward"};
      for (const Purpose purpose : purposes) cells.emplace_back(readable_bytes(real(bytes[purpose]) / ranks));
      cells.emplace_back(readable_bytes(real(bytes.total()) / ranks));
      table.row(std::move(cells));
    }
  }
  page.table(table);
}

void flops_table(Page& page, const PlanQuestion& question, const std::vector<PlanPoint>& points) {
  page.prose("");
  page.prose(
      "Table IV. GFLOP of the busiest rank in one step; attention counts the pairs that masks leave, backward what is made "
      "again.");
  const bool packed = !question.setting.documents.empty();
  if (packed)
    page.prose("imbalance: how many times the mean's pairs the rank has that attends most, of those that cut sequences.");
  std::vector<Column> columns = {{"layout", Align::left}, "forward: linear", "attention", "head",
                                 "backward: linear",      "attention",       "head",      "total"};
  if (packed) columns.emplace_back("imbalance");
  Table table(columns);
  const auto giga = [](double flops) { return fmt::format("{:.3f}", flops / kGiga); };
  for (const PlanPoint& point : points) {
    if (!point.possible) continue;
    std::vector<Cell> cells = {point.layout.label()};
    for (const theory::PassFlops* pass : {&point.flops.forward, &point.flops.backward}) {
      cells.emplace_back(giga(pass->attention_linear + pass->mlp));
      cells.emplace_back(giga(pass->attention_core));
      cells.emplace_back(giga(pass->head));
    }
    cells.emplace_back(giga(point.flops.total()));
    if (packed) cells.emplace_back(fmt::format("{:.2f}", theory::attention_imbalance(question.setting, point.layout)));
    table.row(std::move(cells));
  }
  page.table(table);
}

/// Adds what is to be said of the ways on which bytes move in points that are possible.
void remarks(Page& page, const PlanQuestion& question, std::span<const PlanPoint> points) {
  std::vector<Layout> layouts;
  for (const PlanPoint& point : points) {
    if (point.possible) layouts.push_back(point.layout);
  }
  for (const std::string& remark : {theory::sums_remark(layouts, *question.machine, question.machine->adds_by_rails()),
                                    theory::ring_remark(question.setting, layouts, *question.machine)}) {
    if (!remark.empty()) page.prose(remark, kMostColumns);
  }
}

void time_table(Page& page, const PlanQuestion& question, const std::vector<PlanPoint>& points) {
  page.prose("");
  page.prose(fmt::format("Time of a step, modelled from a rank's program (theory/lone_walk.h), on {}.", question.machine->name));
  remarks(page, question, points);
  Table table({{"layout", Align::left}, "ms", "tokens/s", "MFU", "exposed", {"bound by", Align::left}});
  for (const PlanPoint& point : points) {
    if (!point.possible) continue;
    table.row({point.layout.label(), fmt::format("{:.3f}", point.time.seconds * 1e3), fmt::format("{:.0f}", point.tokens_per_s),
               percent(point.utilization), percent(point.time.exposed / point.time.seconds),
               theory::name(point.time.binds, *question.machine)});
  }
  page.table(table);
}

/// Returns the sizes of layers, as `size` has them, in the order of the first layer of each: "256/512".
template <class Size>
std::string sizes_of_layers(const ModelConfig& model, Size&& size) {
  std::vector<std::size_t> sizes;
  model.specs.for_each([&](const LayerSpec& layer) {
    if (std::ranges::find(sizes, size(layer)) == sizes.end()) sizes.push_back(size(layer));
  });
  return fmt::format("{}", fmt::join(sizes, "/"));
}

}  // namespace

std::vector<Layout> peers_of(const Layout& given) {
  std::vector<Layout> peers = {given};
  const int data = given.data();
  const auto add = [&](Layout layout) {
    if (std::find(peers.begin(), peers.end(), layout) == peers.end()) peers.push_back(std::move(layout));
  };
  for (const Layout& layout : theory::all_layouts(given.ranks())) {
    if (layout.shares_states() != given.shares_states() || layout.shares_weights() != given.shares_weights()) continue;
    if (layout.data() == given.ranks() && data < given.ranks()) {
      add(layout);
      continue;
    }
    if (layout.data() != data) continue;
    // Products of axes in one order only, and in their usual variants.
    const bool product = layout.tensor() > 1 && layout.sequence() > 1;
    if (product && (layout != layout.plain() || layout.stride(layout.tensor_axis()) == 1)) continue;
    add(layout);
  }
  return peers;
}

PlanPoint plan_point(const PlanQuestion& question, const Layout& layout) {
  const Setting& setting = question.setting;
  theory::Candidate candidate;
  if (question.machine) {
    candidate = theory::judge(setting, layout, *question.machine, question.search_options());
  } else {
    candidate.layout = layout;
    candidate.recompute = setting.recompute;
    candidate.why = why_impossible(setting, layout);
    candidate.possible = candidate.why.empty();
  }
  if (candidate.possible) {
    // For a few layouts many ranks can be asked, with a machine or without.
    const theory::Need need = theory::need({setting, layout}, question.peak_options());
    candidate.memory = need.evenly;
    candidate.fits = need.saving <= question.memory_bytes;
    if (question.memory_bytes != 0 && !candidate.fits) {
      const char* where = "";
      if (need.any_ids <= question.memory_bytes) where = " where a checkpoint is saved";
      else if (need.evenly.total <= question.memory_bytes) where = " where all tokens of a step have their embedding on one rank";
      candidate.why = fmt::format("{} too much{}", readable_bytes(real(need.saving - question.memory_bytes)), where);
    }
  }
  return plan_point(question, candidate);
}

PlanPoint plan_point(const PlanQuestion& question, const theory::Candidate& candidate) {
  PlanPoint point{candidate, {}, {}};
  if (!point.possible) return point;
  Setting setting = question.setting;
  setting.recompute = point.recompute;
  const bool known = point.amounts && question.nodes == 1 && question.share;
  const theory::StepCounts counts =
      theory::step_counts({setting, point.layout}, question.peak_options(), known ? &*point.amounts : nullptr);
  point.traffic = counts.traffic;
  point.flops = counts.flops;
  return point;
}

ordered_json plan_json(const PlanQuestion& question, const PlanPoint& point) {
  ordered_json json;
  json["layout"] = layout_json(point.layout);
  json["label"] = point.layout.label();
  if (!point.alike.empty()) json["alike"] = labels_of(point.alike);
  json["recompute"] = recompute_name(point.recompute);
  for (const AxisRow& row : kAxes) {
    if (!row.variants.empty()) json[std::string(row.name)] = variant_name(point.layout, row);
  }
  json["ranks"] = point.layout.ranks();
  json["config"] = question.setting.model.name;
  json["parameters"] = theory::held({.setting = question.setting, .layout = {}}, {}).total();
  json["seq"] = question.setting.sequence;
  json["batch"] = question.setting.batch;
  if (!question.setting.documents.empty()) json["documents"] = question.setting.documents;
  json["micro_batches"] = question.setting.micro_batches;
  json["memory_peak_bytes"] = nullptr;
  json["traffic_bytes"] = nullptr;
  json["tokens_per_s"] = nullptr;
  const std::optional<bool> fits = known_fit(question, point);
  json["fits"] = fits ? ordered_json(*fits) : ordered_json(nullptr);
  json["why"] = point.why;
  if (!point.possible) return json;
  json["memory_peak_bytes"] = memory_json(point.memory);
  json["traffic_bytes"] = {{"forward", traffic_json(point.traffic.forward)}, {"backward", traffic_json(point.traffic.backward)}};
  json["traffic_bytes_per_rank"] = {{"forward", mean_traffic_json(point.traffic.forward, point.layout.ranks())},
                                    {"backward", mean_traffic_json(point.traffic.backward, point.layout.ranks())}};
  json["means"] = {{"memory_peak_bytes", "of the rank that holds most"},
                   {"traffic_bytes", "sum over ranks"},
                   {"traffic_bytes_per_rank", "mean over ranks"},
                   {"flops", "of the busiest rank"}};
  if (json.contains("documents")) json["attention_imbalance"] = theory::attention_imbalance(question.setting, point.layout);
  json["flops"] = {{"forward", flops_json(point.flops.forward)}, {"backward", flops_json(point.flops.backward)}};
  if (question.machine) {
    json["tokens_per_s"] = point.tokens_per_s;
    json["step_seconds"] = point.time.seconds;
    json["exposed_seconds"] = point.time.exposed;
    json["mfu"] = point.utilization;
    json["bound_by"] = theory::name(point.time.binds, *question.machine);
  }
  return json;
}

std::string describe(const PlanQuestion& question) {
  const ModelConfig& model = question.setting.model;
  const std::vector<std::uint32_t>& documents = question.setting.documents;
  const std::string mode = question.modes.empty() ? recompute_name(question.setting.recompute) : "as suits each layout best";
  return fmt::format(
      "{}: h {}, L {}, n_h {}, n_kv {}, d {}, f {}, V {}; B {}{}, S {}{}, {}, recompute {}", model.name, model.hidden,
      model.layers, model.query_heads, sizes_of_layers(model, [&](const LayerSpec& layer) { return model.kv_heads_of(layer); }),
      sizes_of_layers(model, [&](const LayerSpec& layer) { return model.head_dim_of(layer); }),
      sizes_of_layers(model, [&](const LayerSpec& layer) { return model.intermediate_of(layer); }), model.vocabulary,
      question.setting.batch,
      question.setting.micro_batches == 1 ? "" : fmt::format(" in {} micro-batches", question.setting.micro_batches),
      question.setting.sequence, documents.empty() ? "" : " in documents of " + print_documents(documents), name(question.dtype),
      mode);
}

std::vector<std::string> plan_tables(const PlanQuestion& question, const std::vector<PlanPoint>& points, std::size_t columns) {
  Page page{columns, {}};
  page.prose(describe(question));
  memory_table(page, question, points);
  traffic_table(page, points);
  flops_table(page, question, points);
  if (question.machine) time_table(page, question, points);
  return page.lines;
}

std::vector<std::string> search_table(const PlanQuestion& question, const std::vector<PlanPoint>& points, std::size_t top,
                                      std::size_t columns) {
  Page page{columns, {}};
  page.prose(describe(question));
  page.prose(fmt::format("machine: {}; {} a GPU", question.machine->name, readable_bytes(real(question.memory_bytes))));
  page.prose(
      fmt::format(
          "step times are modelled from the {} rank's program (theory/lone_walk.h): for ranking, not for promises; MFU: the "
          "model's FLOPs without recomputation "
          "over all GPUs' peak; what fits is asked of the fullest GPU, with ids that spread evenly: `plan --layout` asks all",
          question.setting.documents.empty() ? "fullest" : "busiest"),
      kMostColumns);
  remarks(page, question, points);
  page.prose("");
  Table fitting({{"fits", Align::left},
                 {"recompute", Align::right, "", true},
                 "ms a step",
                 "tokens/s",
                 "MFU",
                 "exposed",
                 "peak",
                 {"bound by", Align::left}});
  Table others({{"doesn't fit", Align::left}, "recompute", {"why", Align::left}});
  std::size_t fit = 0;
  std::size_t other = 0;
  for (const PlanPoint& point : points) {
    std::size_t& count = point.fits ? fit : other;
    ++count;
    if (top != 0 && count > top) continue;
    if (point.fits) {
      fitting.row({all_labels(point), recompute_name(point.recompute), fmt::format("{:.2f}", point.time.seconds * 1e3),
                   fmt::format("{:.0f}", point.tokens_per_s), percent(point.utilization),
                   percent(point.time.exposed / point.time.seconds), readable_bytes(real(point.memory.total)),
                   theory::name(point.time.binds, *question.machine)});
    } else {
      others.row({all_labels(point), point.possible ? recompute_name(point.recompute) : "-", point.why});
    }
  }
  const auto more = [&](std::size_t count) {
    if (top != 0 && count > top) page.prose(fmt::format("… and {} more: --top 0 or --json shows them all", count - top));
  };
  if (fit == 0) page.prose("no layout fits");
  else page.table(fitting);
  more(fit);
  if (other == 0) return page.lines;
  page.prose("");
  page.table(others);
  more(other);
  return page.lines;
}

std::vector<std::string> remedy_lines(const PlanQuestion& question, const theory::Remedies& remedies, std::size_t columns) {
  const theory::Candidate& least = remedies.least;
  Page page{columns, {}};
  page.prose("");
  page.prose(fmt::format(
      "why nothing fits: the layout that needs least, {} with recompute {}, holds {} on its fullest GPU, {} more than the {} it "
      "has",
      least.layout.label(), recompute_name(least.recompute), readable_bytes(real(remedies.memory_bytes)),
      readable_bytes(real(remedies.memory_bytes - question.memory_bytes)), readable_bytes(real(question.memory_bytes))));
  std::string parts;
  for (std::size_t i = 0; i < kCategories; ++i) {
    if (least.memory.of[i] == 0) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name(static_cast<Category>(i)),
                         readable_bytes(real(least.memory.of[i])));
  }
  page.prose("peaks of what it holds: " + parts);
  constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
  std::string what = fmt::format("what would fit: --mem {}M", (remedies.memory_bytes + kStep - 1) / kStep);
  if (remedies.more_gpus) {
    what += fmt::format("; --gpus {} ({}, recompute {})", remedies.more_gpus->layout.ranks(), remedies.more_gpus->layout.label(),
                        recompute_name(remedies.more_gpus->recompute));
  }
  if (remedies.batch != 0) what += fmt::format("; --batch {}", remedies.batch);
  if (remedies.sequence != 0) what += fmt::format("; --seq {}", remedies.sequence);
  page.prose(what);
  return page.lines;
}

ordered_json remedy_json(const theory::Remedies& remedies) {
  const auto if_any = [](std::size_t value) { return value == 0 ? ordered_json(nullptr) : ordered_json(value); };
  return {{"layout", remedies.least.layout.label()},
          {"recompute", recompute_name(remedies.least.recompute)},
          {"mem_bytes", remedies.memory_bytes},
          {"gpus", remedies.more_gpus ? ordered_json(remedies.more_gpus->layout.ranks()) : ordered_json(nullptr)},
          {"batch", if_any(remedies.batch)},
          {"seq", if_any(remedies.sequence)}};
}

}  // namespace tsprun::detail::launcher
