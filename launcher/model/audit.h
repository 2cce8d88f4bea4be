// The audit of a run: what every rank held, received and spent, beside what theory says. Gathered from all ranks, reported as
// JSON; audit_table.h prints it.
#pragma once

#include "core/collectives/choice.h"
#include "core/memory/category.h"
#include "core/rank/rank.h"
#include "launcher/report_sink.h"
#include "layers/theory/decoding.h"
#include "layers/theory/layouts.h"
#include "layers/theory/step.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

/// Payload that crossed one transport's lanes in the whole run so far.
struct LinkBytes {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};
inline constexpr std::array<std::string_view, 3> kLinkNames = {"shm", "verbs", "tcp"};

/// One rank's measurements.
struct RankAudit {
  CategoryBytes memory_peak;                         ///< over the whole run
  CategoryBytes memory_forecast{};                   ///< what the rank itself forecasts of it
  TrafficCounters forward;                           ///< of one step
  TrafficCounters backward;                          ///< all zero where there is none
  TrafficCounters tokens{};                          ///< of all tokens that were generated after a prompt
  RankTimes seconds;                                 ///< of all steps
  std::array<LinkBytes, kLinkNames.size()> links{};  ///< gather_audits() fills them in
};

/// What theory says of the same rank.
struct RankForecast {
  CategoryBytes memory_peak;
  std::optional<theory::Traffic> traffic;  ///< received in one step; none: only the sum over ranks is known
};
struct Forecast {
  std::vector<RankForecast> ranks;
  std::optional<theory::Traffic> all;          ///< received by all ranks together; none: not known
  std::optional<theory::PurposeBytes> tokens;  ///< the same of all tokens after a prompt, whose pass is then `all`.forward
};

/// What crossed lanes between two looks at a rank's counters.
TrafficCounters traffic_between(const TrafficCounters& before, const TrafficCounters& after);
/// Collective over the world: every rank's, in the order of ranks, on every rank.
std::vector<RankAudit> gather_audits(Rank& rank, RankAudit mine);

/// How the ranks do an all_reduce of so many bytes.
using AllReduceChoice = std::function<Algorithm(std::size_t bytes)>;

/// What is forecast: traffic of a step of this kind. Memory every rank forecasts itself: take_memory().
struct ForecastOptions {
  bool training = false;
  AllReduceChoice all_reduce = {};  ///< empty: in two rounds, by chunks
};
/// For the step whose tokens are `ids` [B, S] in natural order. The sums of norm gains' gradients and of the loss (`other`) are
/// forecast where every rank's traffic is.
Forecast forecast(const theory::MeshSetting& of, std::span<const std::int32_t> ids, const ForecastOptions& options);
/// For one block, forward and (with options.training) backward.
Forecast forecast_block(const theory::MeshSetting& of, const ForecastOptions& options);

/// For the text `ids`, of which the first `prompt` were given and the last was never put in.
Forecast forecast_text(const theory::MeshSetting& of, std::span<const std::int32_t> ids, std::size_t prompt,
                       theory::TokenSum sum);

/// Puts what the ranks forecast of their memory into the forecast of all.
void take_memory(Forecast& forecast, std::span<const RankAudit> audits);

/// `per_rank` and `theory` of the report; `paper`: what paper_json() gives, or null.
void report_audit(ReportSink& sink, std::span<const RankAudit> audits, const Forecast& forecast,
                  const nlohmann::ordered_json& paper = nullptr);
/// What the paper's own formulas say of the same run, bytes of a layer and device, memory of a device; null for a layout that the
/// paper has no formulas for.
nlohmann::ordered_json paper_json(const theory::MeshSetting& of, DType dtype);

}  // namespace tsprun::launcher
