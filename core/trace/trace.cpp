// The current trace of each thread.
#include "core/trace/trace.h"

namespace tsprun {

namespace {

/// One per thread: a rank's schedule runs on one thread, and a thread runs the schedule of one rank.
thread_local Trace* current_trace = nullptr;

}  // namespace

Trace* Trace::current() { return current_trace; }

void Trace::set_current(Trace* trace) { current_trace = trace; }

}  // namespace tsprun
