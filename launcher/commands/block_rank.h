// Every rank's part of `tsprun block`.
#pragma once

#include "core/context.h"
#include "launcher/commands/block.h"
#include "launcher/report_sink.h"

namespace tsprun::detail::launcher {

/// Arguments of block_rank(). Pointers are borrowed.
struct BlockPlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;  ///< batch and sequence are those of the input; the model has one layer
  const BlockOptions* block;
};

/// Computes the block, writes the output file, and prints the audit. Returns the exit code. Throws an error that names the first
/// place where numbers weren't finite, if any wasn't.
int block_rank(Context& context, ReportSink& sink, const BlockPlan& plan);

}  // namespace tsprun::detail::launcher
