// Every rank's part of `tsprun eval`.
#pragma once

#include "core/context.h"
#include "launcher/model/model_options.h"
#include "launcher/model/progress.h"
#include "launcher/report_sink.h"

#include <string>

namespace tsprun::detail::launcher {

/// Arguments of eval_rank(). Pointers are borrowed.
struct EvalPlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;
  std::string logits;  ///< file to write; empty: none
  Progress::Style progress;
};

/// Evaluates all windows, --batch of them at a time; prints the mean loss in nats and the audit of the first pass; sets `loss`,
/// `windows`, `tokens`, `per_rank` and `theory` in the report. Returns the exit code.
int eval_rank(Context& context, ReportSink& sink, const EvalPlan& plan);

}  // namespace tsprun::detail::launcher
