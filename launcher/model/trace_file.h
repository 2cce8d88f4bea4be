// The trace of a job: one JSON file in Chrome's trace event format, which Perfetto and chrome://tracing load, gzipped if its name
// ends in .gz. A process a rank; a row of spans (steps, passes, layers), a row of kernels and waits, a row a stream; FLOPs and
// bytes as arguments, of a wait the rank and the operation that it waited for; what the heap holds by category as counters; an
// arrow from each sender to each receiver of an operation, or fewer. Slices of a row stand in the order in which they begin,
// those that hold others before them.
#pragma once

#include "core/board/flight_board.h"
#include "core/context.h"
#include "core/trace/trace.h"
#include "launcher/trace_options.h"
#include "transport/fault/spec.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// Under what key rank 0 tells tsprun that a job was done but its trace wasn't.
inline constexpr const char* kTraceTrouble = "trace_trouble";

struct TraceTarget {
  std::string path;
  TraceFlows flows = TraceFlows::all;
};

/// Every rank of the world appends its events to the file, one after another; rank 0 empties it first. `faults`: the job's; those
/// that struck this rank or messages to it, as far as the board has them, are instants. Collective. Why the file system wouldn't
/// take it, on every rank; empty: it did.
std::string write_trace(Context& context, const Trace& trace, const std::vector<fault::Spec>& faults, const TraceTarget& target);

/// What is left to trace of a job that failed, whose ranks took their events with them: every rank's process, the faults that
/// struck, as far as the board has them, and the failure are instants. For the launcher. `when_ns`, `zero_ns`: of the failure and
/// of the job's start, by posix::now_ns. Throws Error(refused) if the file system won't take it.
void write_failure_trace(const FlightBoard& board, const std::vector<fault::Spec>& faults, const Failure& failure,
                         std::uint64_t when_ns, std::uint64_t zero_ns, const std::string& path);

}  // namespace tsprun::launcher
