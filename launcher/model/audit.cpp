#include "launcher/model/audit.h"

#include "layers/theory/flows.h"
#include "layers/theory/paper.h"

#include <algorithm>
#include <type_traits>

namespace tsprun::launcher {

namespace {

using nlohmann::ordered_json;

static_assert(std::is_trivially_copyable_v<RankAudit>, "audits travel as bytes");

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

/// Returns what each kind of transport has carried.
std::array<LinkBytes, kFactories.size()> link_bytes(const Context& context) {
  std::array<LinkBytes, kFactories.size()> all{};
  for (const LinkTraffic& link : context.traffic_by_link()) {
    const auto kind = std::ranges::find(kFactories, link.transport, &Factory::name);
    LinkBytes& bytes = all[static_cast<std::size_t>(kind - kFactories.begin())];
    for (int i = 0; i < kPurposes; ++i) {
      bytes.sent += link.counters.sent[i];
      bytes.received += link.counters.received[i];
    }
  }
  return all;
}

ordered_json links_json(const RankAudit& audit) {
  ordered_json json = ordered_json::object();
  for (std::size_t link = 0; link < kFactories.size(); ++link)
    json[std::string(kFactories[link]->name)] = {{"sent", audit.links[link].sent}, {"received", audit.links[link].received}};
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

/// Returns true for plain TSP, the only scheme for which every rank's traffic is known and not only the sum.
bool is_tsp(const theory::MeshSetting& of) {
  return of.shape.scheme == Scheme::tsp && of.shape.tensor == 1 && of.shape.data == 1;
}

/// Returns the payload bytes that a rank receives when `elements` of `element_bytes` each are summed over all ranks.
std::uint64_t all_reduced(const theory::MeshSetting& of, int rank, std::uint64_t elements, std::size_t element_bytes,
                          const ForecastOptions& options) {
  const std::size_t bytes = elements * element_bytes;
  const Algorithm algorithm = options.all_reduce ? options.all_reduce(bytes) : Algorithm::direct;
  if (algorithm == Algorithm::one_shot) return static_cast<std::uint64_t>(of.shape.ranks() - 1) * bytes;
  theory::Setting setting = of.setting;
  setting.bytes.accumulated = element_bytes;
  const theory::SumPath path = algorithm == Algorithm::ring ? theory::SumPath::ring : theory::SumPath::direct;
  return theory::all_reduced_of_rank(setting, of.shape.sequence, rank, path, elements);
}

void sum_up(Forecast& forecast) {
  forecast.all.emplace();
  for (const RankForecast& each : forecast.ranks) *forecast.all += *each.traffic;
}

}  // namespace

Forecast forecast(const theory::MeshSetting& of, std::span<const std::int32_t> ids, const ForecastOptions& options) {
  Forecast result;
  result.ranks.resize(static_cast<std::size_t>(of.shape.ranks()));
  if (is_tsp(of)) {
    const int ranks = of.shape.sequence;
    const std::vector<theory::RemoteRows> rows = theory::remote_rows(ids, of.setting, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto number = static_cast<std::size_t>(rank);
      result.ranks[number].traffic =
          theory::tsp_step_of_rank(of.setting, ranks, rank, theory::SumPath::direct, rows[number], options.training);
      theory::Traffic& traffic = *result.ranks[number].traffic;
      traffic.forward[Purpose::other] = all_reduced(of, rank, 1, sizeof(double), options);  // the loss
      if (!options.training) continue;
      const std::uint64_t biases = of.setting.model.projection_biases();
      const std::size_t element = of.setting.bytes.accumulated;
      traffic.backward[Purpose::other] =
          all_reduced(of, rank, of.setting.model.replicated_parameters() - biases, element, options) +
          (biases == 0 ? 0 : all_reduced(of, rank, biases, element, options));
    }
    sum_up(result);
  } else if (of.setting.batch % static_cast<std::size_t>(of.shape.data) == 0) {
    result.all = theory::mesh_step(of, ids);
    if (!options.training) result.all->backward = {};
  }
  return result;
}

Forecast forecast_text(const theory::MeshSetting& of, std::span<const std::int32_t> ids, std::size_t prompt,
                       theory::TokenSum sum) {
  const std::span<const std::int32_t> put_in = ids.first(ids.size() - 1);
  Forecast result;
  result.ranks.resize(static_cast<std::size_t>(of.shape.ranks()));
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
    if (is_tsp(of)) {
      each.traffic = theory::tsp_block_of_rank(of.setting, of.shape.sequence, rank, theory::SumPath::direct);
      each.traffic->backward[Purpose::other] += all_reduced(of, rank, gains, of.setting.bytes.accumulated, options);
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

void take_memory(Forecast& forecast, std::span<const RankAudit> audits) {
  for (std::size_t rank = 0; rank < audits.size(); ++rank) forecast.ranks[rank].memory_peak = audits[rank].memory_forecast;
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

}  // namespace tsprun::launcher
