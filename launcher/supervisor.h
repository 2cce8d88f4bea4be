// Starts the ranks of a job, watches them until all have ended, and reports how the job ended.
//
// A job is either a built-in command, whose rank_main runs in forked children of tsprun, or a user's program (`run`), which a
// small parent process per rank starts (guardian.h). Either way the ranks are tsprun's only children: each has a pidfd, two pipes
// for its output and a page on the flight board. If a shell ended in `exec tsprun`, the shell's children are tsprun's as well;
// they are left alone.
#pragma once

#include "core/context.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "launcher/report_sink.h"
#include "launcher/step_list.h"
#include "launcher/wind_down.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

/// How long programs of `run` may go on, in nanoseconds, before they are ended.
struct Patience {
  std::uint64_t after_signal_ns = 0;   ///< after a signal asked them to end
  std::uint64_t after_failure_ns = 0;  ///< after another rank failed; at least what they have anyway, less than a second
};

/// Description of the job that run_job() runs.
struct JobSpec {
  const GlobalOptions* global = nullptr;  ///< ranks, heap budget, deadline, binding, prefixes

  /// Function that every rank of a built-in command runs. An exception ends the rank as a failure, and its text goes to the
  /// flight board. Lines for the user's stdout go through the sink, which prints them without a rank prefix.
  std::function<void(Context&, ReportSink&)> rank_main = {};

  /// Request page of built-in commands that can save and end early: the first signal asks the ranks to do that. A
  /// second signal, or the end of the time that the ranks have for it, ends the job as signals end other jobs. Null: the first
  /// signal ends the job. Borrowed.
  WindDown* wind_down = nullptr;

  /// Times that programs have to end by themselves.
  Patience patience = {};

  /// Reason why this tsprun can't start its part of the job; empty: it can. With several machines all nodes are told the reason,
  /// on one machine run_job() throws it.
  std::string trouble = {};

  /// List of the steps that rank 0 reports; null: nobody wants them. Borrowed.
  StepList* steps = nullptr;

  /// Descriptors that the ranks of a built-in command inherit, besides those that all ranks have. Borrowed.
  std::vector<int> inherited = {};

  /// True: rank 0 of a built-in command reads tsprun's stdin; programs always do.
  bool reads_stdin = false;

  /// Program of `run` and its arguments, used if rank_main is empty.
  std::vector<std::string> program = {};

  /// Variables that the program gets besides those that tell a rank its place.
  std::vector<std::pair<std::string, std::string>> environment = {};
};

/// Runs a job to its end. Prints the verdict if it failed, sets `failure` in the report, and merges in what rank 0 put into its
/// sink. Returns tsprun's exit code: 0: succeeded; 1: failed; 128 + n: ended by signal n; under `run` the exit code of the first
/// rank that failed, or 128 + its signal. Throws Error(refused | out_of_memory) if the ranks couldn't be started, and
/// Error(disconnected) if a node doesn't come back for a further attempt of the same job.
int run_job(const JobSpec& spec, Report& report);

/// Runs a job whose ranks compute a model, as run_job() does: each calls `rank_main`, and has succeeded when that returns.
/// `inherited`: a descriptor that they inherit; -1: none.
int run_model_job(const GlobalOptions& global, Report& report, const std::function<void(Context&, ReportSink&)>& rank_main,
                  int inherited = -1);

}  // namespace tsprun::detail::launcher
