// Whether a run fits into --mem-per-rank, found before ranks start by the forecast that the audit makes after them: the same
// schedule on the same tokens, run on ranks that aren't there.
#pragma once

#include "launcher/model/model_options.h"
#include "layers/theory/peaks.h"

#include <functional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Forecasts the memory peaks of one rank.
using PeaksOfRank = std::function<CategoryBytes(const theory::MeshSetting& of, int rank, const theory::PeakOptions& options)>;

/// Throws Error(refused) if a rank would need more than --mem-per-rank, with what it needs by category and the least budget that
/// works. `when`: what of the run is forecast: "its first steps". Of many ranks it looks at those of theory::asked(), in each of
/// the `replicas`; none: in the first theory::kMostAsked, since each reads other tokens.
void check_need(const ModelCommandOptions& options, const GlobalOptions& global, bool training, const std::string& when,
                const PeaksOfRank& peaks, std::vector<int> replicas = {});

/// Checks a training that goes on after step `done`: its first two steps, on the tokens that they read, the first windows that it
/// evaluates, if `evaluated` has their data, and a checkpoint after them if it `saves`.
void check_training_need(const ModelCommandOptions& options, const GlobalOptions& global, std::uint64_t done, std::uint64_t last,
                         bool saves, const ModelCommandOptions* evaluated);

}  // namespace tsprun::detail::launcher
