// The interface of a tsprun command: a file in this folder that defines a subclass of Command and its make_…() function.
// docs/how-to/add-something.md says what else a new command needs.
//
//   parse     CLI11 fills the command's option struct (add_options) and GlobalOptions
//   validate  refuses every request that can't work, before any rank starts: throws Error(Cause::refused, …)
//   run       does the work: a command with ranks calls run_job() with a JobSpec, whose rank_main every rank executes
#pragma once

#include "launcher/inputs.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "launcher/supervisor.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// One command of tsprun, such as `train`. all_commands() makes one object of each before the command line is parsed.
class Command {
 public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  /// Returns the command's name as it is typed.
  virtual std::string name() const = 0;
  /// Returns the one-line description that --help shows.
  virtual std::string help() const = 0;
  /// Adds the command's options to its subcommand. Options bind to members of this object; they may be bound as texts that
  /// validate() parses.
  virtual void add_options(CLI::App& app) = 0;
  /// Tells whether the command starts ranks: in one job, in several jobs, or not at all.
  virtual RankUse rank_use() const { return RankUse::job; }
  /// Returns true if the command starts ranks.
  bool has_ranks() const { return rank_use() != RankUse::on_paper; }
  /// Returns true if the command's ranks write the trace that --trace asks for.
  virtual bool has_trace() const { return false; }
  /// Returns true if the ranks announce each step (Context::begin_step), so that a fault can be injected at a given step.
  virtual bool has_steps() const { return false; }
  /// Returns the number of processes that one rank takes.
  virtual int processes_per_rank() const { return 1; }
  /// Checks the command's options. Called after the global options were validated and before anything starts. Throws
  /// Error(Cause::refused, "option value: why; what would work").
  virtual void validate(const GlobalOptions& global) { (void)global; }
  /// Returns what the ranks compute with and which files they read. All nodes must agree on it. Called after validate().
  virtual Inputs inputs() const { return {}; }
  /// Runs the command and returns the exit code. May set the command's own keys of the report (report.root()["bench"] = …). The
  /// caller and run_job() set `failure` and the keys that all commands share.
  virtual int run(const GlobalOptions& global, Report& report) = 0;
};

/// Makers of the commands, each defined in its command's file.
std::unique_ptr<Command> make_train();
std::unique_ptr<Command> make_eval();
std::unique_ptr<Command> make_block();
std::unique_ptr<Command> make_run();
std::unique_ptr<Command> make_bench();
std::unique_ptr<Command> make_generate();
std::unique_ptr<Command> make_plan();
std::unique_ptr<Command> make_compare();
std::unique_ptr<Command> make_doctor();
std::unique_ptr<Command> make_status();

/// Returns all commands, in the order in which --help lists them.
std::vector<std::unique_ptr<Command>> all_commands();

}  // namespace tsprun::detail::launcher
