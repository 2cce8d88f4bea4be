// Parts of the trace that the ranks of a program leave (core/trace/program_trace.h): a file in memory for each rank of this
// machine.
#pragma once

#include "core/trace/events_text.h"
#include "core/trace/trace_text.h"
#include "transport/bootstrap/placement.h"
#include "transport/posix.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// The files of this machine's ranks.
class RankTraces {
 public:
  /// Makes the files. Throws Error(refused).
  RankTraces(bootstrap::RankBlock ranks, TraceFlows flows);

  /// Returns the descriptor of a rank's file.
  int descriptor(int rank) const { return files_[static_cast<std::size_t>(rank - ranks_.first)].get(); }
  /// Returns what TSP_TRACE_FD says to a rank. `zero_ns`: the trace's time 0.
  std::string place(int rank, std::uint64_t zero_ns) const;
  /// Prints a rank's part. Returns false, and prints nothing, if the rank left none that is whole.
  bool print(int rank, TraceText& text) const;

 private:
  bootstrap::RankBlock ranks_;
  TraceFlows flows_;
  std::vector<posix::UniqueFd> files_;
};

}  // namespace tsprun::detail::launcher
