// The audit of a run: what every rank held, received and spent, beside what theory says. Gathered from all ranks and reported as
// JSON; audit_table.h prints it.
#pragma once

#include "core/rank/rank.h"
#include "launcher/report_sink.h"
#include "layers/theory/peaks.h"
#include "transport/factory.h"
#include "tsprun/memory.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <span>
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
  theory::RankCounts forecast{};                     ///< the rank's own, of its memory and of what it receives
  TrafficCounters forward;                           ///< bytes of one step
  TrafficCounters backward;                          ///< the same; all zero without a backward pass
  TrafficCounters tokens{};                          ///< bytes of all tokens that were generated after a prompt
  RankTimes seconds;                                 ///< of all steps together
  std::array<LinkBytes, kFactories.size()> links{};  ///< by kind of transport; filled in by gather_audits()
};

/// Kind of run that is audited.
enum class Audited : std::uint8_t {
  steps,  ///< one step or pass of several alike
  text    ///< the generation of a text: a prompt, then token by token
};

/// Returns the audits of all ranks, in the order of ranks, on every rank; fills in their `links`. Collective over the world.
std::vector<RankAudit> gather_audits(Rank& rank, RankAudit mine);

/// Returns what was forecast for all ranks together; `memory` isn't summed.
theory::RankCounts forecast_of_all(std::span<const RankAudit> audits);

/// Sets `per_rank` and `theory` in the report. `paper`: the result of paper_json(), or null.
void report_audit(ReportSink& sink, std::span<const RankAudit> audits, Audited kind,
                  const nlohmann::ordered_json& paper = nullptr);
/// Returns what the paper's own formulas say of this run: bytes per layer and device, memory per device. Returns null for a
/// layout or model that the paper has no formulas for.
nlohmann::ordered_json paper_json(const theory::MeshSetting& of);

}  // namespace tsprun::detail::launcher
