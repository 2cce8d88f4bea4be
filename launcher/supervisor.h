// Starts the ranks of a job, watches them to their end, and says how it ended.
//
// A job is either a built-in command, whose rank_main runs in forked children of tsprun, or a user's program (`run`), started by
// a small parent per rank (guardian.h). Either way tsprun's only children are the ranks (but for those of a shell that has
// exec'd it, which are left alone): one pidfd, two pipes for their output, one page on the flight board each.
#pragma once

#include "core/context.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "launcher/report_sink.h"
#include "launcher/wind_down.h"

#include <functional>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// What shall run.
struct JobSpec {
  const GlobalOptions* global = nullptr;  ///< ranks, heap budget, deadline, binding, prefixes

  /// Built-in commands: what every rank does. Its result is the process's exit code. Exceptions end the rank as a failure: the
  /// board gets the text. Lines that are meant for the user's stdout go through the sink, which prints them without a prefix.
  std::function<int(Context&, ReportSink&)> rank_main;

  /// Built-in commands that can end early in good order: SIGINT and SIGTERM ask for that first. A second one, or the time that
  /// the ranks have being over, ends the job as signals end others. Null: at once. Borrowed.
  WindDown* wind_down = nullptr;

  /// Why this tsprun's part of a job on several machines can't begin: all nodes are told. Empty: it can.
  std::string trouble;

  /// Its ranks multiply matrices: OpenBLAS is tried before they start.
  bool multiplies = false;

  /// `run`: the program and its arguments, used if rank_main is empty.
  std::vector<std::string> program;
};

/// Runs a job to its end. Prints the verdict if it failed, sets `failure` in the report and merges what rank 0 put into its sink.
/// Returns tsprun's exit code: 0; 1 failed; 128+n ended by signal n; under `run` the first failing rank's code or 128+signal.
/// Throws Error(refused | out_of_memory) if the ranks couldn't be started.
int run_job(const JobSpec& spec, Report& report);

}  // namespace tsprun::launcher
