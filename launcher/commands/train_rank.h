// One rank's part of `tsprun train`.
#pragma once

#include "core/context.h"
#include "launcher/commands/train.h"
#include "launcher/model/progress.h"
#include "launcher/report_sink.h"

namespace tsprun::launcher {

/// Everything is borrowed.
struct TrainPlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;
  const TrainOptions* train;
  Progress::Style progress;
  const RunFolder* folder;  ///< of --save; null: nothing is saved
  WindDown* wind_down;      ///< asks for a last checkpoint; null: nobody does
};

/// Trains, prints progress and the audit, sets `steps`, `loss`, `per_rank` and `theory` in the report. Returns the exit code.
int train_rank(Context& context, ReportSink& sink, const TrainPlan& plan);

}  // namespace tsprun::launcher
