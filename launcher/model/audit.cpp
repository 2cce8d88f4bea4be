// Gathers measurements and forecasts of all ranks, and writes both as JSON.
#include "launcher/model/audit.h"

#include "launcher/counts_json.h"
#include "launcher/plan/paper_tables.h"
#include "layers/theory/paper.h"
#include "layers/theory/ways.h"

#include <algorithm>
#include <type_traits>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

static_assert(std::is_trivially_copyable_v<RankAudit>, "audits travel as bytes");

ordered_json traffic_json(const TrafficCounters& counters) {
  return by_purpose([&](Purpose purpose) {
    const auto i = static_cast<std::size_t>(purpose);
    return ordered_json{{"sent", counters.sent[i]}, {"received", counters.received[i]}};
  });
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
    bytes.received += link.counters.received[static_cast<std::size_t>(Purpose::unasked)];
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

std::vector<RankAudit> gather_audits(Rank& rank, RankAudit mine) {
  mine.links = link_bytes(rank.context());
  std::vector<RankAudit> all(static_cast<std::size_t>(rank.size()));
  rank.world().all_gather(ConstBuffer(&mine, sizeof mine, DType::byte),
                          Buffer(all.data(), all.size() * sizeof(RankAudit), DType::byte));
  return all;
}

theory::RankCounts forecast_of_all(std::span<const RankAudit> audits) {
  theory::RankCounts all;
  for (const RankAudit& audit : audits) {
    all.traffic += audit.forecast.traffic;
    all.tokens += audit.forecast.tokens;
  }
  return all;
}

ordered_json paper_json(const theory::MeshSetting& of) {
  const Setting& setting = of.setting;
  const Layout& layout = of.layout;
  // The equations are those of a gated MLP, and of a batch that is computed at once.
  const bool of_paper = setting.model.gated_mlp() && setting.micro_batches == 1;
  const std::optional<paper::Scheme> scheme = of_paper ? theory::paper_scheme(layout) : std::nullopt;
  if (!scheme) return nullptr;
  paper::Symbols symbols = paper_symbols(setting, layout);
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

void report_audit(ReportSink& sink, std::span<const RankAudit> audits, Audited kind, const ordered_json& paper) {
  const auto received_json = [&](const theory::RankCounts& forecast) {
    ordered_json json = {{"forward", traffic_json(forecast.traffic.forward)},
                         {"backward", traffic_json(forecast.traffic.backward)}};
    if (kind == Audited::text) json["tokens"] = traffic_json(forecast.tokens);
    return json;
  };
  ordered_json per_rank = ordered_json::array();
  ordered_json theory = ordered_json::array();
  for (std::size_t rank = 0; rank < audits.size(); ++rank) {
    const RankAudit& audit = audits[rank];
    ordered_json traffic = {{"forward", traffic_json(audit.forward)}, {"backward", traffic_json(audit.backward)}};
    if (kind == Audited::text) traffic["tokens"] = traffic_json(audit.tokens);
    per_rank.push_back({{"rank", rank},
                        {"memory_peak_bytes", memory_json(audit.memory_peak)},
                        {"traffic_bytes", std::move(traffic)},
                        {"transport_bytes", links_json(audit)},
                        {"seconds",
                         {{"total", audit.seconds.total},
                          {"compute", audit.seconds.compute},
                          {"communication", audit.seconds.communication},
                          {"exposed_communication", audit.seconds.exposed_communication}}}});
    theory.push_back({{"rank", rank},
                      {"memory_peak_bytes", memory_json(audit.forecast.memory)},
                      {"traffic_bytes", received_json(audit.forecast)}});
  }
  sink.set("per_rank", per_rank);
  const ordered_json all = {{"traffic_bytes", received_json(forecast_of_all(audits))}};
  sink.set("theory", {{"per_rank", theory}, {"all_ranks", all}, {"paper", paper}});
}

}  // namespace tsprun::detail::launcher
