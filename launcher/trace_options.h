// Options that select what --trace writes of a job: training steps, and arrows between ranks.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace tsprun::detail::launcher {

/// Arrows that connect the ranks' slices of an operation.
enum class TraceFlows : std::uint8_t {
  all,         ///< from each sender to each receiver; n·(n−1) for a collective of n ranks
  neighbours,  ///< in a collective only from each rank to the next of its group; n arrows
  none
};

/// Options of --trace, as typed and as validated.
struct TraceOptions {
  std::string steps_text;
  std::string flows_text = "all";

  // Results of validation.
  std::uint64_t first_step = 0;  ///< 0: the whole job is traced
  std::uint64_t last_step = 0;
  TraceFlows flows = TraceFlows::all;

  /// Returns true if the whole job is traced, not only some steps.
  bool whole_job() const { return first_step == 0; }
  /// Returns true if a training step is traced.
  bool holds(std::uint64_t step) const { return whole_job() || (step >= first_step && step <= last_step); }
};

/// Declares the options on the application.
void add_trace_options(CLI::App& app, TraceOptions& options, const std::string& group);
/// Parses and checks the options. `file`: the file of --trace, empty if there is none. Throws Error(refused).
void validate_trace_options(TraceOptions& options, const std::string& file);
/// Throws Error(refused) unless --trace-steps names some of the steps `first` to `last` that will be trained. `command`: its
/// name; a command that trains nothing passes last = 0.
void check_trace_steps(const TraceOptions& options, const std::string& command, std::uint64_t first, std::uint64_t last);

}  // namespace tsprun::detail::launcher
