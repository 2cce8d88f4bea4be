// The trace of a job: one JSON file in Chrome's trace event format, which Perfetto and chrome://tracing load; gzipped if its name
// ends in .gz. Each rank is a process with a row of spans (steps, passes, layers), a row of kernels and waits, and a row per
// stream. Arguments hold FLOPs and bytes, and for a wait the rank and operation that it waited for. Counters show the heap by
// category. Arrows lead from senders to receivers of an operation; TraceFlows says which. Slices of a row are sorted by
// beginning, enclosing slices before those inside them.
#pragma once

#include "core/board/flight_board.h"
#include "core/context.h"
#include "core/trace/recorder.h"
#include "launcher/rank_traces.h"
#include "launcher/trace_options.h"
#include "layers/theory/simulate.h"
#include "transport/fault/spec.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Report key by which rank 0 tells tsprun that the job succeeded but its trace couldn't be written.
inline constexpr const char* kTraceTrouble = "trace_trouble";

/// Path of a trace, and the arrows that it has.
struct TraceTarget {
  std::string path;
  TraceFlows flows = TraceFlows::all;
};

/// Writes the trace: every rank of the world appends its events to the file in turn; rank 0 empties it first. `faults`: the
/// job's; those that struck this rank or messages to it appear as instants, as far as the board has them. Collective. Returns, on
/// every rank, why the file couldn't be written; empty: it was.
std::string write_trace(Context& context, const TraceRecorder& trace, const std::vector<fault::Spec>& faults,
                        const TraceTarget& target);

/// A job's end, as the launcher sees it.
struct TraceEnd {
  Failure failure;            ///< its cause is none if the job succeeded
  std::uint64_t when_ns = 0;  ///< time of the failure (posix::now_ns)
  std::uint64_t zero_ns = 0;  ///< time 0 of the trace: the job's start
};

/// Writes the trace of ranks that are gone: the process of each of `ranks`, with the events that it left in `events` (null: they
/// are lost), and as instants the faults that struck, as far as the board has them, and the failure. For the launcher. Returns
/// the ranks whose events are missing. Throws Error(refused) if the file can't be written.
std::vector<int> write_trace_of_job(const FlightBoard& board, bootstrap::RankBlock ranks, const std::vector<fault::Spec>& faults,
                                    const TraceEnd& end, const RankTraces* events, const std::string& path);
/// Returns the file for the trace of a node's ranks, as nodes may share the folder: "trace.json.gz" of node 0, then
/// "trace.node1.json.gz".
std::string trace_of_node(const std::string& path, int node);

/// Writes the trace of a step in virtual time: a process for each played rank, and one for the links, with a counter for each.
/// Throws Error(refused) if the file can't be written.
void write_played_trace(const theory::Simulated& played, const TraceTarget& target);

}  // namespace tsprun::detail::launcher
