// The trace of a job: one JSON file in Chrome's trace event format, which Perfetto and chrome://tracing load. A process a rank, a
// row a stream; FLOPs and bytes as arguments; an arrow from each sender to each receiver of an operation.
#pragma once

#include "core/context.h"
#include "core/trace/trace.h"
#include "transport/fault/spec.h"

#include <string>
#include <vector>

namespace tsp::launcher {

/// Every rank of the world appends its events to `path`, one after another; rank 0 empties it first. `faults`: the job's; those
/// that struck this rank or messages to it, as far as the board has them, are instants. Collective. Throws Error(refused) if the
/// file system won't take it.
void write_trace(Context& context, const Trace& trace, const std::vector<fault::Spec>& faults, const std::string& path);

}  // namespace tsp::launcher
