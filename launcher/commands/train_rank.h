// Every rank's part of `tsprun train`.
#pragma once

#include "core/context.h"
#include "launcher/commands/train.h"
#include "launcher/model/progress.h"
#include "launcher/report_sink.h"

namespace tsprun::detail::launcher {

/// Arguments of train_rank(). Pointers are borrowed.
struct TrainPlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;
  const TrainOptions* train;
  Progress::Style progress;
  const RunFolder* folder;  ///< the folder of --save; null: nothing is saved
  WindDown* wind_down;      ///< tells when to save and end early; null: never
};

/// Trains, prints progress and the audit, sets `steps`, `loss`, `per_rank` and `theory` in the report. Returns the exit code. A
/// run that is asked to end saves, and returns 0 without an audit.
int train_rank(Context& context, ReportSink& sink, const TrainPlan& plan);

}  // namespace tsprun::detail::launcher
