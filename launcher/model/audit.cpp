#include "launcher/model/audit.h"

#include "layers/theory/flows.h"
#include "layers/theory/paper.h"
#include "layers/theory/peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <type_traits>

namespace tsp::launcher {

namespace {

using nlohmann::ordered_json;

static_assert(std::is_trivially_copyable_v<RankAudit>, "audits travel as bytes");

constexpr double kMiB = 1 << 20;

ordered_json memory_json(const CategoryBytes& bytes) {
  ordered_json json;
  for (std::size_t i = 0; i < kCategories; ++i) json[std::string(name(static_cast<Category>(i)))] = bytes.of[i];
  json["total"] = bytes.total;
  return json;
}

ordered_json traffic_json(const TrafficCounters& counters) {
  ordered_json json;
  for (int i = 0; i < kPurposes; ++i) {
    json[std::string(name(static_cast<Purpose>(i)))] = {{"sent", counters.sent[i]}, {"received", counters.received[i]}};
  }
  return json;
}

ordered_json traffic_json(const theory::PurposeBytes& received) {
  ordered_json json;
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    json[std::string(name(purpose))] = {{"received", received[purpose]}};
  }
  return json;
}

std::string exact_mebibytes(std::uint64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / kMiB); }

/// "1.250 = 1.250": measured and predicted, and whether they are the same to the byte.
std::string pair(std::uint64_t measured, std::uint64_t predicted) {
  if (measured == predicted) return fmt::format("{} =", exact_mebibytes(measured));
  return fmt::format("{} / {}", exact_mebibytes(measured), exact_mebibytes(predicted));
}

constexpr int kCell = 19;

std::string row(std::string_view head, const std::vector<std::string>& cells) {
  std::string line = fmt::format("{:<6}", head);
  for (const std::string& cell : cells) line += fmt::format("{:>{}}", cell, kCell);
  return line;
}

void memory_table(std::vector<std::string>& lines, std::span<const RankAudit> audits, std::span<const RankForecast> forecasts) {
  lines.emplace_back("memory, peak MiB: measured / predicted (\"=\": equal to the byte)");
  std::vector<std::string> heads;
  for (std::size_t i = 0; i < kCategories; ++i) heads.emplace_back(name(static_cast<Category>(i)));
  heads.emplace_back("total");
  lines.push_back(row("rank", heads));
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const CategoryBytes& measured = audits[rank].memory_peak;
    const CategoryBytes& predicted = forecasts[rank].memory_peak;
    std::vector<std::string> cells;
    for (std::size_t i = 0; i < kCategories; ++i) cells.push_back(pair(measured.of[i], predicted.of[i]));
    cells.push_back(pair(measured.total, predicted.total));
    lines.push_back(row(std::to_string(rank), cells));
  }
}

/// A part of a run whose traffic has a table of its own.
struct Part {
  std::string_view title;
  TrafficCounters RankAudit::*measured;
  std::vector<const theory::PurposeBytes*> by_rank;  ///< null: only the sum over ranks is known
  const theory::PurposeBytes* all;                   ///< null: not even that
};

Part forward_pass(const Forecast& forecast, std::string_view title) {
  Part part{.title = title, .measured = &RankAudit::forward, .by_rank = {}, .all = nullptr};
  for (const RankForecast& each : forecast.ranks) part.by_rank.push_back(each.traffic ? &each.traffic->forward : nullptr);
  if (forecast.all) part.all = &forecast.all->forward;
  return part;
}

Part backward_pass(const Forecast& forecast, std::string_view title) {
  Part part{.title = title, .measured = &RankAudit::backward, .by_rank = {}, .all = nullptr};
  for (const RankForecast& each : forecast.ranks) part.by_rank.push_back(each.traffic ? &each.traffic->backward : nullptr);
  if (forecast.all) part.all = &forecast.all->backward;
  return part;
}

Part later_tokens(const Forecast& forecast, std::string_view title) {
  return {.title = title,
          .measured = &RankAudit::tokens,
          .by_rank = std::vector<const theory::PurposeBytes*>(forecast.ranks.size(), nullptr),
          .all = &*forecast.tokens};
}

/// Purposes of which anything was measured or predicted in any of the parts: so that their tables have the same columns.
std::vector<Purpose> purposes_in_use(std::span<const RankAudit> audits, std::span<const Part> parts) {
  std::vector<Purpose> purposes;
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    const bool used = std::ranges::any_of(parts, [&](const Part& part) {
      const auto received = [&](const RankAudit& audit) { return (audit.*part.measured).received[i] > 0; };
      return std::ranges::any_of(audits, received) || (part.all != nullptr && (*part.all)[purpose] > 0);
    });
    if (used) purposes.push_back(purpose);
  }
  return purposes;
}

/// Bytes of the purposes, and of all of them.
using Row = std::vector<std::uint64_t>;

Row formula_row(const theory::PurposeBytes& formula, std::span<const Purpose> purposes) {
  Row row;
  for (const Purpose purpose : purposes) row.push_back(formula[purpose]);
  row.push_back(formula.total());
  return row;
}

/// `known`: for which purposes there is a formula; for the total, if there is one for all.
std::vector<std::string> cells_of(const Row& measured, const std::optional<Row>& predicted, const std::vector<bool>& known) {
  std::vector<std::string> cells;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    cells.push_back(predicted && known[i] ? pair(measured[i], (*predicted)[i]) : exact_mebibytes(measured[i]));
  }
  return cells;
}

/// `other_known`: for norm gains' gradients and the like there is a formula, too.
void traffic_table(std::vector<std::string>& lines, std::span<const RankAudit> audits, const Part& part,
                   std::span<const Purpose> purposes, bool other_known) {
  lines.push_back(fmt::format("received {}, MiB: measured / formula (\"=\": equal to the byte)", part.title));
  std::vector<std::string> heads;
  std::vector<bool> known;
  for (const Purpose purpose : purposes) {
    heads.emplace_back(name(purpose));
    known.push_back(other_known || purpose != Purpose::other);
  }
  heads.emplace_back("total");
  known.push_back(other_known);
  lines.push_back(row("rank", heads));
  Row sum(purposes.size() + 1);
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const TrafficCounters& counters = audits[rank].*part.measured;
    Row measured;
    for (const Purpose purpose : purposes) measured.push_back(counters.received[static_cast<int>(purpose)]);
    measured.push_back(std::accumulate(measured.begin(), measured.end(), std::uint64_t{0}));
    for (std::size_t i = 0; i < measured.size(); ++i) sum[i] += measured[i];
    std::optional<Row> predicted;
    if (part.by_rank[rank] != nullptr) predicted = formula_row(*part.by_rank[rank], purposes);
    lines.push_back(row(std::to_string(rank), cells_of(measured, predicted, known)));
  }
  std::optional<Row> predicted;
  if (part.all != nullptr) predicted = formula_row(*part.all, purposes);
  lines.push_back(row("sum", cells_of(sum, predicted, known)));
}

void time_table(std::vector<std::string>& lines, std::span<const RankAudit> audits) {
  lines.emplace_back("seconds of all of it");
  lines.push_back(row("rank", {"total", "compute", "communication", "exposed of it"}));
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const RankTimes& seconds = audits[rank].seconds;
    lines.push_back(row(std::to_string(rank),
                        {fmt::format("{:.3f}", seconds.total), fmt::format("{:.3f}", seconds.compute),
                         fmt::format("{:.3f}", seconds.communication), fmt::format("{:.3f}", seconds.exposed_communication)}));
  }
}

/// What each transport has carried, in the order of kLinkNames.
std::array<LinkBytes, kLinkNames.size()> link_bytes(const Context& context) {
  std::array<LinkBytes, kLinkNames.size()> all{};
  for (const LinkTraffic& link : context.traffic_by_link()) {
    const auto name = std::find(kLinkNames.begin(), kLinkNames.end(), link.transport);
    if (name == kLinkNames.end()) continue;
    LinkBytes& bytes = all[static_cast<std::size_t>(name - kLinkNames.begin())];
    for (int i = 0; i < kPurposes; ++i) {
      bytes.sent += link.counters.sent[i];
      bytes.received += link.counters.received[i];
    }
  }
  return all;
}

/// Transports that carried something.
std::vector<std::size_t> links_in_use(std::span<const RankAudit> audits) {
  std::vector<std::size_t> used;
  for (std::size_t link = 0; link < kLinkNames.size(); ++link) {
    if (std::any_of(audits.begin(), audits.end(),
                    [&](const RankAudit& each) { return each.links[link].sent + each.links[link].received > 0; }))
      used.push_back(link);
  }
  return used;
}

/// Only where there is more than shared memory.
void links_table(std::vector<std::string>& lines, std::span<const RankAudit> audits) {
  const std::vector<std::size_t> used = links_in_use(audits);
  if (used.empty() || (used.size() == 1 && used.front() == 0)) return;
  lines.emplace_back("payload by transport in the whole run, MiB: sent / received");
  std::vector<std::string> heads;
  for (const std::size_t link : used) heads.emplace_back(kLinkNames[link]);
  lines.push_back(row("rank", heads));
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    std::vector<std::string> cells;
    for (const std::size_t link : used) {
      const LinkBytes& bytes = audits[rank].links[link];
      cells.push_back(fmt::format("{} / {}", exact_mebibytes(bytes.sent), exact_mebibytes(bytes.received)));
    }
    lines.push_back(row(std::to_string(rank), cells));
  }
}

ordered_json links_json(const RankAudit& audit) {
  ordered_json json = ordered_json::object();
  for (std::size_t link = 0; link < kLinkNames.size(); ++link)
    json[std::string(kLinkNames[link])] = {{"sent", audit.links[link].sent}, {"received", audit.links[link].received}};
  return json;
}

}  // namespace

TrafficCounters traffic_between(const TrafficCounters& before, const TrafficCounters& after) {
  TrafficCounters difference;
  for (int i = 0; i < kPurposes; ++i) {
    difference.sent[i] = after.sent[i] - before.sent[i];
    difference.received[i] = after.received[i] - before.received[i];
  }
  return difference;
}

std::vector<RankAudit> gather_audits(Rank& rank, RankAudit mine) {
  mine.links = link_bytes(rank.context());
  std::vector<RankAudit> all(static_cast<std::size_t>(rank.size()));
  rank.world().all_gather(ConstBuffer(&mine, sizeof mine, DType::byte),
                          Buffer(all.data(), all.size() * sizeof(RankAudit), DType::byte));
  return all;
}

namespace {

/// Under TSP alone every rank's traffic is known, not only the sum.
bool is_tsp(const theory::MeshSetting& of) {
  return of.shape.scheme == Scheme::tsp && of.shape.tensor == 1 && of.shape.data == 1;
}

void sum_up(Forecast& forecast) {
  forecast.all.emplace();
  for (const RankForecast& each : forecast.ranks) *forecast.all += *each.traffic;
}

}  // namespace

Forecast forecast(const theory::MeshSetting& of, std::span<const std::int32_t> ids, const ForecastOptions& options) {
  Forecast result;
  const theory::PeakOptions peaks{.threads = options.threads, .training = options.training, .passes = options.passes};
  for (int rank = 0; rank < of.shape.ranks(); ++rank)
    result.ranks.push_back({.memory_peak = theory::peaks(of, rank, ids, peaks), .traffic = {}});
  if (is_tsp(of)) {
    const int ranks = of.shape.sequence;
    const std::vector<theory::RemoteRows> rows = theory::remote_rows(ids, of.setting, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto number = static_cast<std::size_t>(rank);
      result.ranks[number].traffic =
          theory::tsp_step_of_rank(of.setting, ranks, rank, theory::SumPath::direct, rows[number], options.training);
    }
    sum_up(result);
  } else if (of.setting.batch % static_cast<std::size_t>(of.shape.data) == 0) {
    result.all = theory::mesh_step(of, ids);
    if (!options.training) result.all->backward = {};
  }
  return result;
}

Forecast forecast_text(const theory::MeshSetting& of, std::span<const std::int32_t> ids, std::size_t prompt, theory::TokenSum sum,
                       std::size_t threads) {
  const std::span<const std::int32_t> put_in = ids.first(ids.size() - 1);
  Forecast result;
  for (int rank = 0; rank < of.shape.ranks(); ++rank) {
    result.ranks.push_back(
        {.memory_peak = theory::decoding_peaks(of, rank, put_in, prompt, {.threads = threads, .training = false}),
         .traffic = {}});
  }
  result.all.emplace();
  result.all->forward = theory::prompt_traffic(of, ids.first(prompt), sum);
  result.tokens = theory::tokens_traffic(of, prompt, put_in.size() - prompt, sum);
  return result;
}

Forecast forecast_block(const theory::MeshSetting& of, const ForecastOptions& options) {
  const std::uint64_t gains = 2 * of.setting.model.hidden;
  Forecast result;
  for (int rank = 0; rank < of.shape.ranks(); ++rank) {
    RankForecast each;
    each.memory_peak = theory::block_peaks(of, rank, {.threads = options.threads, .training = options.training});
    if (is_tsp(of)) {
      each.traffic = theory::tsp_block_of_rank(of.setting, of.shape.sequence, rank, theory::SumPath::direct);
      each.traffic->backward[Purpose::other] +=
          theory::all_reduced_of_rank(of.setting, of.shape.sequence, rank, theory::SumPath::direct, gains);
      if (!options.training) each.traffic->backward = {};
    }
    result.ranks.push_back(each);
  }
  if (is_tsp(of)) {
    sum_up(result);
    return result;
  }
  result.all = theory::mesh_block(of);
  if (!options.training) result.all->backward = {};
  return result;
}

ordered_json paper_json(const theory::MeshSetting& of, DType dtype) {
  const theory::Setting& setting = of.setting;
  const ModelConfig& model = setting.model;
  const MeshShape& shape = of.shape;
  const int axes = (shape.data > 1 ? 1 : 0) + (shape.tensor > 1 ? 1 : 0) + (shape.sequence > 1 ? 1 : 0);
  const bool both = shape.scheme == Scheme::dense && shape.data == 1 && axes == 2;
  // The equations are those of a gated MLP.
  if (!model.gated_mlp()) return nullptr;
  if (shape.scheme == Scheme::zero3 || shape.slices_tokens() || (axes > 1 && !both)) return nullptr;
  const paper::Scheme scheme = both                            ? paper::Scheme::tp_sp
                               : shape.data > 1                ? paper::Scheme::dp
                               : shape.tensor > 1              ? paper::Scheme::tp
                               : shape.scheme == Scheme::dense ? paper::Scheme::sp
                                                               : paper::Scheme::tsp;
  const auto real = [](std::uint64_t value) { return static_cast<double>(value); };
  paper::Setting symbols;
  symbols.B = real(setting.batch);
  symbols.S = real(setting.sequence);
  symbols.h = real(model.hidden);
  symbols.L = real(model.layers);
  symbols.n_h = real(model.query_heads);
  symbols.g = real(model.heads_per_kv_head());
  symbols.F = real(model.intermediate) / real(model.hidden);
  symbols.D = shape.ranks();
  symbols.T = shape.tensor;
  symbols.Sigma = shape.sequence;
  symbols.beta_P = real(setting.bytes.element);
  symbols.beta_g = real(setting.bytes.accumulated);
  symbols.n_o = dtype == DType::bf16 ? 3 : 2;
  symbols.beta_o = real(setting.bytes.accumulated);
  const auto layer = [&](paper::Pass pass) { return paper::communication(symbols, scheme, pass); };
  const paper::Memory memory = paper::memory(symbols, scheme, setting.recompute);
  return {{"layer_bytes",
           {{"forward", layer(paper::Pass::forward)},
            {"forward_backward", layer(paper::Pass::forward_backward)},
            {"forward_backward_recompute", layer(paper::Pass::forward_backward_recompute)}}},
          {"memory_bytes",
           {{"parameters", memory.parameters},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer},
            {"activations", memory.activations},
            {"total", memory.total()}}}};
}

void report_audit(ReportSink& sink, std::span<const RankAudit> audits, const Forecast& forecast, const ordered_json& paper) {
  const auto both_passes = [](const std::optional<theory::Traffic>& traffic) -> ordered_json {
    if (!traffic) return nullptr;
    return {{"forward", traffic_json(traffic->forward)}, {"backward", traffic_json(traffic->backward)}};
  };
  ordered_json per_rank = ordered_json::array();
  ordered_json theory = ordered_json::array();
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const RankAudit& audit = audits[rank];
    ordered_json traffic = {{"forward", traffic_json(audit.forward)}, {"backward", traffic_json(audit.backward)}};
    if (forecast.tokens) traffic["tokens"] = traffic_json(audit.tokens);
    per_rank.push_back({{"rank", rank},
                        {"memory_peak_bytes", memory_json(audit.memory_peak)},
                        {"traffic_bytes", std::move(traffic)},
                        {"transport_bytes", links_json(audit)},
                        {"seconds",
                         {{"total", audit.seconds.total},
                          {"compute", audit.seconds.compute},
                          {"communication", audit.seconds.communication},
                          {"exposed_communication", audit.seconds.exposed_communication}}}});
    const RankForecast& predicted = forecast.ranks[rank];
    theory.push_back({{"rank", rank},
                      {"memory_peak_bytes", memory_json(predicted.memory_peak)},
                      {"traffic_bytes", both_passes(predicted.traffic)}});
  }
  sink.set("per_rank", per_rank);
  ordered_json all = both_passes(forecast.all);
  if (forecast.tokens) all["tokens"] = traffic_json(*forecast.tokens);
  sink.set("theory", {{"per_rank", theory}, {"all_ranks", {{"traffic_bytes", std::move(all)}}}, {"paper", paper}});
}

std::vector<std::string> audit_table(std::span<const RankAudit> audits, const Forecast& forecast) {
  std::vector<std::string> lines = {"", "audit"};
  memory_table(lines, audits, forecast.ranks);
  std::vector<Part> parts;
  if (forecast.tokens) {
    parts = {forward_pass(forecast, "for the prompt"), later_tokens(forecast, "for all tokens put in after it")};
  } else {
    const bool backward =
        std::ranges::any_of(forecast.ranks, [](const RankForecast& each) { return each.memory_peak[Category::gradients] > 0; });
    parts = {forward_pass(forecast, "in the forward pass of one step")};
    if (backward) parts.push_back(backward_pass(forecast, "in the backward pass of one step"));
  }
  const bool other_known =
      forecast.tokens || std::ranges::all_of(forecast.ranks, [](const RankForecast& each) { return each.traffic.has_value(); });
  const std::vector<Purpose> purposes = purposes_in_use(audits, parts);
  for (const Part& part : parts) traffic_table(lines, audits, part, purposes, other_known);
  links_table(lines, audits);
  time_table(lines, audits);
  return lines;
}

}  // namespace tsp::launcher
