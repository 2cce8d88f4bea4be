// The interface of a tsprun command: a file in this folder that defines a subclass of Command and its make_…() function, and its
// name in registry.cpp.
//
//   parse     CLI11 sets the texts of the command's options (declare) and of GlobalOptions; then they are parsed into values
//   validate  refuses every request that can't work, before any rank starts: throws Error(Cause::refused, …)
//   run       does the work: a command with ranks calls run_job() with a JobSpec, whose rank_main every rank executes
#pragma once

#include "launcher/inputs.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "launcher/supervisor.h"

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tsprun::detail::launcher {

/// Facts about a command that tsprun needs before it runs.
struct CommandFacts {
  std::string name;                          ///< as it is typed
  std::string help;                          ///< one line for --help
  std::array<std::string_view, 2> examples;  ///< command lines with which its --help ends, of at most 110 letters
  RankUse ranks = RankUse::job;              ///< whether it starts ranks: in one job, in several jobs, or not at all
  bool has_trace = false;                    ///< writes the trace that --trace asks for
  bool has_profile = false;                  ///< prints what --profile asks for
  bool has_steps = false;                    ///< its ranks announce steps (Context::begin_step), at which faults can be injected
  int processes_per_rank = 1;
  bool multiplies = true;  ///< multiplies matrices, or forecasts ranks that do

  bool has_ranks() const { return ranks == RankUse::job || ranks == RankUse::jobs; }
};

/// A command of tsprun, such as `train`. all_commands() makes one object of each before the command line is parsed.
class Command {
 public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  /// Returns what doesn't depend on options.
  virtual CommandFacts facts() const = 0;
  /// Adds the rows of the command's options, which refer to members of this object.
  virtual void declare(OptionTable& table) { (void)table; }
  /// Changes what --help says besides options, examples and global options.
  virtual void describe(CLI::App& app) const { (void)app; }
  /// Sets those global options that the command has under another name. Called before they are validated, when options have
  /// texts and no values yet. Throws Error(Cause::refused).
  virtual void hand_over(GlobalOptions& global) const { (void)global; }
  /// Checks the command's options together. Called after they were parsed and before anything starts. Throws
  /// Error(Cause::refused, "option value: why; what would work").
  virtual void validate(const GlobalOptions& global) { (void)global; }
  /// Returns what the ranks compute with and which files they read. All nodes must agree on it. Called after validate().
  virtual Inputs inputs() const { return {}; }
  /// Runs the command and returns the exit code. May set the command's own keys of the report (report.root()["bench"] = …). The
  /// caller and run_job() set `failure` and the keys that all commands share.
  virtual int run(const GlobalOptions& global, Report& report) = 0;
};

/// Returns all commands, in the order in which --help lists them.
std::vector<std::unique_ptr<Command>> all_commands();

}  // namespace tsprun::detail::launcher
