// What --trace writes of a job: which training steps, and which arrows.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace tsprun::launcher {

/// Arrows between the ranks' slices of an operation.
enum class TraceFlows : std::uint8_t {
  all,         ///< from each sender to each receiver: of a collective of n ranks n·(n−1)
  neighbours,  ///< of a collective those from each rank to the next of its group alone: n
  none
};

struct TraceOptions {
  std::string steps_text;
  std::string flows_text = "all";

  // Results of validation.
  std::uint64_t first_step = 0;  ///< 0: the whole job
  std::uint64_t last_step = 0;
  TraceFlows flows = TraceFlows::all;

  bool whole_job() const { return first_step == 0; }
  bool holds(std::uint64_t step) const { return whole_job() || (step >= first_step && step <= last_step); }
};

void add_trace_options(CLI::App& app, TraceOptions& options, const std::string& group);
/// `file`: that of --trace, empty if there is none. Throws Error(refused).
void validate_trace_options(TraceOptions& options, const std::string& file);
/// Throws Error(refused) unless some of the steps that will be trained are to be traced. `command`: the command's name; one that
/// trains nothing says so with last = 0.
void check_trace_steps(const TraceOptions& options, const std::string& command, std::uint64_t first, std::uint64_t last);

}  // namespace tsprun::launcher
