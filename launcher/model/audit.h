// The audit of a run: what every rank held, received and spent, beside what theory says. Gathered from all ranks, printed as
// tables, reported as JSON.
#pragma once

#include "core/memory/category.h"
#include "core/rank/rank.h"
#include "launcher/report_sink.h"
#include "layers/theory/setting.h"
#include "layers/theory/step.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsp::launcher {

/// One rank's measurements.
struct RankAudit {
  CategoryBytes memory_peak;  ///< over the whole run
  TrafficCounters forward;    ///< of one step
  TrafficCounters backward;   ///< all zero where there is none
  RankTimes seconds;          ///< of all steps
};

/// What theory says of the same rank.
struct RankForecast {
  CategoryBytes memory_peak;
  theory::Traffic traffic;  ///< received in one step
};

/// Collective over the world: every rank's, in the order of ranks, on every rank.
std::vector<RankAudit> gather_audits(Rank& rank, const RankAudit& mine);

/// For the step whose tokens are `ids` [B, S] in natural order. Empty: nothing is known of the embedding's rows.
std::vector<RankForecast> forecast(const theory::Setting& setting, DType dtype, int ranks, std::span<const std::int32_t> ids,
                                   bool training);

/// `per_rank` and `theory` of the report.
void report_audit(ReportSink& sink, std::span<const RankAudit> audits, std::span<const RankForecast> forecasts);
/// The tables, a line each.
std::vector<std::string> audit_table(std::span<const RankAudit> audits, std::span<const RankForecast> forecasts);

}  // namespace tsp::launcher
