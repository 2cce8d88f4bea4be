// Options that select what --trace writes of a job, and --profile prints of it: training steps, and arrows between ranks.
#pragma once

#include "core/trace/events_text.h"
#include "launcher/option_table.h"

#include <cstdint>
#include <string>

namespace tsprun::detail::launcher {

/// Training steps to trace.
struct StepRange {
  std::uint64_t first = 0;  ///< 0: the whole job
  std::uint64_t last = 0;
};

/// Options of --trace, and --profile.
struct TraceOptions {
  bool profile = false;
  Given<StepRange> steps;
  Given<TraceFlows> flows{TraceFlows::all};

  /// Adds their rows.
  void declare(OptionTable& table);
  /// Returns true if the whole job is traced, not only some steps.
  bool whole_job() const { return steps->first == 0; }
  /// Returns true if a training step is traced.
  bool holds(std::uint64_t step) const { return whole_job() || (step >= steps->first && step <= steps->last); }
};

/// Throws Error(refused) if an option is given without --trace or --profile. `file`: the file of --trace, empty if there is none.
void validate_trace_options(const TraceOptions& options, const std::string& file);
/// Throws Error(refused) unless --trace-steps names some of the steps `first` to `last` that will be trained. `command`: its
/// name; a command that trains nothing passes last = 0.
void check_trace_steps(const TraceOptions& options, const std::string& command, std::uint64_t first, std::uint64_t last);

}  // namespace tsprun::detail::launcher
