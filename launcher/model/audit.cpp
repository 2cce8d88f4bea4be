// Gathers measurements, computes forecasts with layers/theory, and writes both as JSON.
#include "launcher/model/audit.h"

#include "core/collectives/chunks.h"
#include "core/collectives/registry.h"
#include "launcher/counts_json.h"
#include "launcher/plan/paper_tables.h"
#include "layers/theory/flows.h"
#include "layers/theory/paper.h"
#include "layers/theory/ways.h"

#include <algorithm>
#include <type_traits>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

static_assert(std::is_trivially_copyable_v<RankAudit>, "audits travel as bytes");

ordered_json traffic_json(const TrafficCounters& counters) {
  ordered_json json;
  for (int i = 0; i < kPurposes; ++i) {
    json[std::string(name(static_cast<Purpose>(i)))] = {{"sent", counters.sent[i]}, {"received", counters.received[i]}};
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

/// Returns the row of the layout's axis if every rank's traffic is known and not only the sum, as for plain TSP with direct sums;
/// else null.
const theory::AxisWay* knows_each_rank(const theory::MeshSetting& of, const ForecastOptions& options) {
  const theory::AxisWay& way = theory::tokens_way(of.layout);
  const bool known = way.step_of_rank != nullptr && of.layout.tensor() == 1 && of.layout.data() == 1 && options.direct_sums;
  return known ? &way : nullptr;
}

void sum_up(Forecast& forecast) {
  for (const RankForecast& each : forecast.ranks) forecast.all += *each.traffic;
}

}  // namespace

bool sums_are_direct(const Communicator& world, const Setting& setting) {
  const std::uint64_t largest =
      setting.bytes.accumulated * std::max({setting.hidden_elements(), setting.kv_elements(), setting.attention_parameters()});
  for (const Op op : {Op::reduce, Op::reduce_scatter}) {
    for (const std::uint64_t bytes : {std::uint64_t{1}, largest}) {
      if (!find_algorithm(op, world.algorithm(op, bytes))->summed_by_owner) return false;
    }
  }
  return true;
}

Forecast forecast(const theory::MeshSetting& of, std::span<const std::int32_t> ids, const ForecastOptions& options) {
  Forecast result;
  result.ranks.resize(static_cast<std::size_t>(of.layout.ranks()));
  if (const theory::AxisWay* way = knows_each_rank(of, options)) {
    const int ranks = of.layout.sequence();
    const std::vector<theory::RemoteRows> rows = theory::remote_rows(ids, of.setting, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto number = static_cast<std::size_t>(rank);
      result.ranks[number].traffic =
          way->step_of_rank(of.setting, ranks, rank, theory::SumPath::direct, rows[number], options.training);
      result.ranks[number].traffic->backward[Purpose::other] = 0;
    }
    sum_up(result);
    return result;
  }
  if (options.training) {
    result.all = theory::mesh_step(of, ids);
    return result;
  }
  // An evaluation cuts any batch over the data axis: its replicas may have different numbers of sequences.
  const Chunks sequences = Chunks::balanced(of.layout.data(), of.setting.batch);
  for (int replica = 0; replica < of.layout.data(); ++replica) {
    if (sequences.count(replica) == 0) continue;
    theory::MeshSetting own = of;
    own.layout = own.layout.without(Cut::batch);
    own.setting.batch = sequences.count(replica);
    const std::size_t first = sequences.offset(replica) * of.setting.sequence;
    result.all += {.forward = theory::mesh_step(own, ids.subspan(first, own.setting.tokens())).forward, .backward = {}};
  }
  return result;
}

Forecast forecast_text(const theory::MeshSetting& of, std::span<const std::int32_t> ids, std::size_t prompt,
                       std::span<const RankAudit> audits) {
  std::uint64_t summed = 0;
  for (const RankAudit& audit : audits) summed += audit.token_sum_forecast;
  const std::span<const std::int32_t> put_in = ids.first(ids.size() - 1);
  Forecast result;
  result.ranks.resize(static_cast<std::size_t>(of.layout.ranks()));
  result.all.forward = theory::prompt_traffic(of, ids.first(prompt), summed);
  result.tokens = theory::tokens_traffic(of, prompt, put_in.size() - prompt, summed);
  return result;
}

Forecast forecast_block(const theory::MeshSetting& of, const ForecastOptions& options) {
  Forecast result;
  result.ranks.resize(static_cast<std::size_t>(of.layout.ranks()));
  const theory::AxisWay* way = knows_each_rank(of, options);
  if (way == nullptr) {
    result.all = theory::mesh_block(of);
    if (!options.training) result.all.backward = {};
    return result;
  }
  for (int rank = 0; rank < of.layout.ranks(); ++rank) {
    std::optional<theory::Traffic>& traffic = result.ranks[static_cast<std::size_t>(rank)].traffic;
    traffic = way->block_of_rank(of.setting, of.layout.sequence(), rank, theory::SumPath::direct);
    if (!options.training) traffic->backward = {};
  }
  sum_up(result);
  return result;
}

ordered_json paper_json(const theory::MeshSetting& of) {
  const Setting& setting = of.setting;
  const Layout& layout = of.layout;
  // The equations are those of a gated MLP.
  const std::optional<paper::Scheme> scheme = setting.model.gated_mlp() ? theory::paper_scheme(layout) : std::nullopt;
  if (!scheme) return nullptr;
  paper::Setting symbols = paper_symbols(setting, layout);
  symbols.T = layout.tensor();
  symbols.Sigma = layout.sequence();
  symbols.beta_g = symbols.beta_o;
  const auto layer = [&](paper::Pass pass) { return paper::communication(symbols, *scheme, pass); };
  const paper::Memory memory = paper::memory(symbols, *scheme, setting.recompute);
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

void take_own(Forecast& forecast, std::span<const RankAudit> audits) {
  const auto add_other = [](theory::Traffic& to, const theory::OtherBytes& other) {
    to.forward[Purpose::other] += other.forward;
    to.backward[Purpose::other] += other.backward;
  };
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    forecast.ranks[rank].memory_peak = audits[rank].memory_forecast;
    if (forecast.ranks[rank].traffic) add_other(*forecast.ranks[rank].traffic, audits[rank].other_forecast);
    add_other(forecast.all, audits[rank].other_forecast);
  }
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

}  // namespace tsprun::detail::launcher
