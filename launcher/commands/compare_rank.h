// Every rank's part of one point of `tsprun compare`: a few steps of one layout at one setting.
#pragma once

#include "core/context.h"
#include "launcher/model/model_options.h"
#include "launcher/report_sink.h"

#include <cstdint>

namespace tsprun::detail::launcher {

/// Arguments of compare_rank(). Pointers are borrowed.
struct ComparePlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;
  std::uint64_t steps;  ///< steps to measure, after a first one that isn't
  bool forward_only;
};

/// Runs the steps; sets `steps` (seconds of each measured one), `per_rank` and `theory` in the report. Returns the exit code.
int compare_rank(Context& context, ReportSink& sink, const ComparePlan& plan);

}  // namespace tsprun::detail::launcher
