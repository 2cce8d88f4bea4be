// The trace of a program's rank, for `tsprun --trace FILE run -- PROGRAM`: recorded from joining to leaving, then written to a
// descriptor that the rank inherited from tsprun, which puts the ranks' parts into one file.
#pragma once

#include "core/streams/engine.h"
#include "core/trace/recorder.h"
#include "transport/posix.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::detail {

/// Last byte that a rank writes; without it, its part of the trace isn't whole.
inline constexpr char kWholeTrace = '\0';

/// Place and manner in which a rank leaves its trace, as the variable TSP_TRACE_FD says: "FD:ZERO:FLOWS".
struct ProgramTracePlace {
  static constexpr const char* kVariable = "TSP_TRACE_FD";
  int descriptor = -1;
  std::uint64_t zero_ns = 0;  ///< the trace's time 0, by posix::now_ns()
  int flows = 0;              ///< TraceFlows as a number

  std::string text() const;
  /// Throws Error(refused) if the text isn't that of a place.
  static ProgramTracePlace parse(std::string_view text);
};

/// Recorder of a program's rank. The engine and the heap must outlive it.
class ProgramTrace {
 public:
  ProgramTrace(const ProgramTracePlace& place, Engine& engine, const Heap& heap);
  ProgramTrace(const ProgramTrace&) = delete;
  ProgramTrace& operator=(const ProgramTrace&) = delete;
  ~ProgramTrace() { engine_->observe(nullptr); }

  /// Writes all events. What the descriptor doesn't take is lost, and tsprun says so.
  void write() const;

 private:
  ProgramTracePlace place_;
  posix::UniqueFd file_;
  Engine* engine_;
  TraceRecorder recorder_;
};

}  // namespace tsprun::detail
