// The audit of a run: what every rank held, received and spent, beside what theory says. Gathered from all ranks and reported as
// JSON; audit_table.h prints it.
#pragma once

#include "core/rank/rank.h"
#include "launcher/report_sink.h"
#include "layers/theory/decoding.h"
#include "layers/theory/layouts.h"
#include "layers/theory/other.h"
#include "layers/theory/step.h"
#include "transport/factory.h"
#include "tsprun/memory.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Payload bytes that crossed one transport's lanes in the whole run so far.
struct LinkBytes {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

/// Measurements of one rank.
struct RankAudit {
  CategoryBytes memory_peak;                         ///< bytes by category, over the whole run
  CategoryBytes memory_forecast{};                   ///< the rank's own forecast of memory_peak
  theory::OtherBytes other_forecast{};               ///< the rank's own forecast of Purpose::other in `forward` and `backward`
  std::uint64_t token_sum_forecast = 0;              ///< of generation: bytes that a sum of a sublayer's result brings the rank
  TrafficCounters forward;                           ///< bytes of one step
  TrafficCounters backward;                          ///< the same; all zero without a backward pass
  TrafficCounters tokens{};                          ///< bytes of all tokens that were generated after a prompt
  RankTimes seconds;                                 ///< of all steps together
  std::array<LinkBytes, kFactories.size()> links{};  ///< by kind of transport; filled in by gather_audits()
};

/// Prediction for one rank.
struct RankForecast {
  CategoryBytes memory_peak;
  std::optional<theory::Traffic> traffic;  ///< received in one step; empty: only the sum over ranks is known
};
/// Predictions for all ranks of a run.
struct Forecast {
  std::vector<RankForecast> ranks;
  theory::Traffic all;                         ///< received by all ranks together
  std::optional<theory::PurposeBytes> tokens;  ///< received for all tokens after a prompt, whose pass is then `all`.forward
};

/// Returns the traffic between two readings of a rank's counters.
TrafficCounters traffic_between(const TrafficCounters& before, const TrafficCounters& after);
/// Returns the audits of all ranks, in the order of ranks, on every rank; fills in their `links`. Collective over the world.
std::vector<RankAudit> gather_audits(Rank& rank, RankAudit mine);

/// Options of a traffic forecast. Memory and Purpose::other aren't among them, since each rank forecasts its own: take_own().
struct ForecastOptions {
  bool training = false;
  bool direct_sums = true;  ///< ranks read sums' terms from each other: sums_are_direct()
};
/// Returns whether the ranks read the terms of all sums of gradients directly from each other. On a ring all ranks together
/// receive as much, but each another part.
bool sums_are_direct(const Communicator& world, const Setting& setting);
/// Forecasts the traffic of one step whose tokens are `ids` [B, S] in natural order.
Forecast forecast(const theory::MeshSetting& of, std::span<const std::int32_t> ids, const ForecastOptions& options);
/// Forecasts the traffic of one block, forward and (with options.training) backward.
Forecast forecast_block(const theory::MeshSetting& of, const ForecastOptions& options);

/// Forecasts the traffic of generating the text `ids`, of which the first `prompt` tokens were given. The last token was never
/// put into the model.
Forecast forecast_text(const theory::MeshSetting& of, std::span<const std::int32_t> ids, std::size_t prompt,
                       std::span<const RankAudit> audits);

/// Adds what each rank forecast of itself: its memory, and the traffic of Purpose::other.
void take_own(Forecast& forecast, std::span<const RankAudit> audits);

/// Sets `per_rank` and `theory` in the report. `paper`: the result of paper_json(), or null.
void report_audit(ReportSink& sink, std::span<const RankAudit> audits, const Forecast& forecast,
                  const nlohmann::ordered_json& paper = nullptr);
/// Returns what the paper's own formulas say of this run: bytes per layer and device, memory per device. Returns null for a
/// layout or model that the paper has no formulas for.
nlohmann::ordered_json paper_json(const theory::MeshSetting& of);

}  // namespace tsprun::detail::launcher
