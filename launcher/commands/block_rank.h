// One rank's part of `tsprun block`.
#pragma once

#include "core/context.h"
#include "launcher/commands/block.h"
#include "launcher/report_sink.h"

namespace tsprun::launcher {

/// Everything is borrowed.
struct BlockPlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;  ///< batch and sequence are those of the input; one layer
  const BlockOptions* block;
};

/// Computes the block, writes the output, prints the audit. Returns the exit code.
int block_rank(Context& context, ReportSink& sink, const BlockPlan& plan);

}  // namespace tsprun::launcher
