// What a command of tsprun is. A new command is one file in this folder that defines a subclass of Command and its make_…()
// function, and one line in registry.cpp.
//
//   parse     CLI11 fills the command's own option struct (add_options) and the global one
//   validate  everything that can be refused is refused here, before any rank starts: throw Error(Cause::refused, …)
//   run       does the work: commands with ranks call run_job() with a JobSpec whose rank_main every rank executes
#pragma once

#include "launcher/inputs.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "launcher/supervisor.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

namespace tsprun::launcher {

class Command {
 public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  /// As typed.
  virtual std::string name() const = 0;
  /// One line for --help.
  virtual std::string help() const = 0;
  /// Adds the command's options to its subcommand. Options bind to members of this object; their texts may be left to validate().
  virtual void add_options(CLI::App& app) = 0;
  /// What the command does with ranks.
  virtual RankUse rank_use() const { return RankUse::job; }
  bool has_ranks() const { return rank_use() != RankUse::on_paper; }
  /// True if the command's ranks write the trace that --trace asks for.
  virtual bool has_trace() const { return false; }
  /// True if its ranks tell when a step begins, for faults that strike at one.
  virtual bool has_steps() const { return false; }
  /// Processes that each rank takes.
  virtual int processes_per_rank() const { return 1; }
  /// Throws Error(Cause::refused, "option value: why; what would work"). Called after the global options were validated and
  /// before anything starts.
  virtual void validate(const GlobalOptions& global) { (void)global; }
  /// What ranks compute with and from, all nodes alike. Called after validate().
  virtual Inputs inputs() const { return {}; }
  /// Does it; returns the exit code. May set keys of the report (report.root()["bench"] = …); the keys that all commands share
  /// and `failure` are set by the caller and run_job().
  virtual int run(const GlobalOptions& global, Report& report) = 0;
};

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

/// All commands, in the order of --help.
std::vector<std::unique_ptr<Command>> all_commands();

}  // namespace tsprun::launcher
