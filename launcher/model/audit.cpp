#include "launcher/model/audit.h"

#include "layers/theory/memory.h"
#include "layers/theory/paper.h"
#include "layers/theory/peaks.h"
#include "layers/theory/shards.h"
#include "layers/zigzag.h"

#include <fmt/format.h>

#include <algorithm>
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

std::string mebibytes(std::uint64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / kMiB); }

/// "1.250 = 1.250": measured and predicted, and whether they are the same to the byte.
std::string pair(std::uint64_t measured, std::uint64_t predicted) {
  if (measured == predicted) return fmt::format("{} =", mebibytes(measured));
  return fmt::format("{} / {}", mebibytes(measured), mebibytes(predicted));
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
    const bool all = predicted.total != 0;
    std::vector<std::string> cells;
    for (std::size_t i = 0; i < kCategories; ++i) {
      const bool known = all || predicted.of[i] != 0;
      cells.push_back(known ? pair(measured.of[i], predicted.of[i]) : mebibytes(measured.of[i]));
    }
    cells.push_back(all ? pair(measured.total, predicted.total) : mebibytes(measured.total));
    lines.push_back(row(std::to_string(rank), cells));
  }
}

/// Purposes of which anything was measured or predicted.
std::vector<Purpose> purposes_in_use(std::span<const RankAudit> audits, std::span<const RankForecast> forecasts) {
  std::vector<Purpose> purposes;
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    bool used = false;
    for (std::size_t rank = 0; rank < audits.size(); ++rank) {
      used |= audits[rank].forward.received[i] + audits[rank].backward.received[i] > 0;
      used |= forecasts[rank].traffic.forward[purpose] + forecasts[rank].traffic.backward[purpose] > 0;
    }
    if (used) purposes.push_back(purpose);
  }
  return purposes;
}

void traffic_table(std::vector<std::string>& lines, std::span<const RankAudit> audits, std::span<const RankForecast> forecasts,
                   bool backward) {
  lines.push_back(fmt::format("received in the {} pass of one step, MiB: measured / formula (\"=\": equal to the byte)",
                              backward ? "backward" : "forward"));
  const std::vector<Purpose> purposes = purposes_in_use(audits, forecasts);
  std::vector<std::string> heads;
  for (const Purpose purpose : purposes) heads.emplace_back(name(purpose));
  heads.emplace_back("total");
  lines.push_back(row("rank", heads));
  std::vector<std::uint64_t> measured_sum(purposes.size() + 1);
  std::vector<std::uint64_t> predicted_sum(purposes.size() + 1);
  const auto print = [&](std::string_view head, std::span<const std::uint64_t> measured,
                         std::span<const std::uint64_t> predicted) {
    std::vector<std::string> cells;
    for (std::size_t i = 0; i < measured.size(); ++i) cells.push_back(pair(measured[i], predicted[i]));
    lines.push_back(row(head, cells));
  };
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const TrafficCounters& counters = backward ? audits[rank].backward : audits[rank].forward;
    const theory::PurposeBytes& formula = backward ? forecasts[rank].traffic.backward : forecasts[rank].traffic.forward;
    std::vector<std::uint64_t> measured;
    std::vector<std::uint64_t> predicted;
    for (const Purpose purpose : purposes) {
      measured.push_back(counters.received[static_cast<int>(purpose)]);
      predicted.push_back(formula[purpose]);
    }
    std::uint64_t all = 0;
    for (const std::uint64_t each : measured) all += each;
    measured.push_back(all);
    predicted.push_back(formula.total());
    for (std::size_t i = 0; i < measured.size(); ++i) {
      measured_sum[i] += measured[i];
      predicted_sum[i] += predicted[i];
    }
    print(std::to_string(rank), measured, predicted);
  }
  print("sum", measured_sum, predicted_sum);
}

void time_table(std::vector<std::string>& lines, std::span<const RankAudit> audits) {
  lines.emplace_back("seconds of all steps");
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
      cells.push_back(fmt::format("{} / {}", mebibytes(bytes.sent), mebibytes(bytes.received)));
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

std::vector<RankForecast> forecast(const theory::Setting& setting, int ranks, std::span<const std::int32_t> ids,
                                   const ForecastOptions& options) {
  const std::vector<theory::RemoteRows> rows = theory::remote_rows(ids, setting, ranks);
  const theory::TspShards shards(setting.model, ranks);
  const Zigzag zigzag(setting.sequence, ranks);
  theory::PeakOptions peaks{.threads = options.threads, .kv_bucket_heads = 0, .dtype = options.dtype, .rows_asked = {}};
  for (int rank = 0; rank < ranks; ++rank) {
    const theory::RemoteRows& own = rows[static_cast<std::size_t>(rank)];
    peaks.rows_asked.push_back(setting.batch * zigzag.tokens(rank) - own.needed + own.wanted);
  }
  std::vector<RankForecast> result(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    RankForecast& each = result[static_cast<std::size_t>(rank)];
    if (options.training) each.memory_peak = theory::tsp_training_peaks(setting, ranks, rank, peaks);
    else each.memory_peak[Category::parameters] = shards.total(rank) * setting.bytes.element;
    each.traffic = theory::tsp_step_of_rank(setting, ranks, rank, theory::SumPath::direct, rows[static_cast<std::size_t>(rank)],
                                            options.training);
  }
  return result;
}

std::vector<RankForecast> forecast_block(const theory::Setting& setting, int ranks, const ForecastOptions& options) {
  const theory::TspShards shards(setting.model, ranks);
  const Zigzag zigzag(setting.sequence, ranks);
  std::vector<RankForecast> result(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    RankForecast& each = result[static_cast<std::size_t>(rank)];
    const std::uint64_t elements = shards.attention(rank) + shards.mlp(rank) + 2 * setting.model.hidden;
    each.memory_peak[Category::parameters] = elements * setting.bytes.element;
    each.traffic = theory::tsp_block_of_rank(setting, ranks, rank, theory::SumPath::direct);
    if (!options.training) {
      each.traffic.backward = {};
      continue;
    }
    each.memory_peak[Category::gradients] = elements * setting.bytes.accumulated;
    each.memory_peak[Category::optimizer] = elements * setting.bytes.accumulated * (options.dtype == DType::bf16 ? 3 : 2);
    // Beside what the block saves: its result.
    each.memory_peak[Category::activations] =
        setting.batch * zigzag.tokens(rank) *
        (theory::saved_bytes_per_token(setting) + setting.model.hidden * setting.bytes.element);
    each.traffic.backward[Purpose::other] += theory::norm_gains_of_rank(setting, ranks, rank, theory::SumPath::direct, 2);
  }
  return result;
}

ordered_json paper_json(const theory::Setting& setting, int ranks, DType dtype) {
  const ModelConfig& model = setting.model;
  const auto real = [](std::uint64_t value) { return static_cast<double>(value); };
  paper::Setting symbols;
  symbols.B = real(setting.batch);
  symbols.S = real(setting.sequence);
  symbols.h = real(model.hidden);
  symbols.L = real(model.layers);
  symbols.n_h = real(model.query_heads);
  symbols.g = real(model.heads_per_kv_head());
  symbols.F = real(model.intermediate) / real(model.hidden);
  symbols.D = ranks;
  symbols.beta_P = real(setting.bytes.element);
  symbols.beta_g = real(setting.bytes.accumulated);
  symbols.n_o = dtype == DType::bf16 ? 3 : 2;
  symbols.beta_o = real(setting.bytes.accumulated);
  const auto layer = [&](paper::Pass pass) { return paper::communication(symbols, paper::Scheme::tsp, pass); };
  const paper::Memory memory = paper::memory(symbols, paper::Scheme::tsp, setting.recompute);
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

void report_audit(ReportSink& sink, std::span<const RankAudit> audits, std::span<const RankForecast> forecasts,
                  const ordered_json& paper) {
  ordered_json per_rank = ordered_json::array();
  ordered_json theory = ordered_json::array();
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const RankAudit& audit = audits[rank];
    per_rank.push_back({{"rank", rank},
                        {"memory_peak_bytes", memory_json(audit.memory_peak)},
                        {"traffic_bytes", {{"forward", traffic_json(audit.forward)}, {"backward", traffic_json(audit.backward)}}},
                        {"transport_bytes", links_json(audit)},
                        {"seconds",
                         {{"total", audit.seconds.total},
                          {"compute", audit.seconds.compute},
                          {"communication", audit.seconds.communication},
                          {"exposed_communication", audit.seconds.exposed_communication}}}});
    const RankForecast& predicted = forecasts[rank];
    theory.push_back(
        {{"rank", rank},
         {"memory_peak_bytes", memory_json(predicted.memory_peak)},
         {"traffic_bytes",
          {{"forward", traffic_json(predicted.traffic.forward)}, {"backward", traffic_json(predicted.traffic.backward)}}}});
  }
  sink.set("per_rank", per_rank);
  sink.set("theory", {{"per_rank", theory}, {"paper", paper}});
}

std::vector<std::string> audit_table(std::span<const RankAudit> audits, std::span<const RankForecast> forecasts) {
  std::vector<std::string> lines = {"", "audit"};
  memory_table(lines, audits, forecasts);
  const bool backward = std::any_of(forecasts.begin(), forecasts.end(),
                                    [](const RankForecast& each) { return each.memory_peak[Category::gradients] > 0; });
  traffic_table(lines, audits, forecasts, false);
  if (backward) traffic_table(lines, audits, forecasts, true);
  links_table(lines, audits);
  time_table(lines, audits);
  return lines;
}

}  // namespace tsp::launcher
