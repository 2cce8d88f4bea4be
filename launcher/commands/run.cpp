// `tsprun -n 4 run -- ./my_program args`: starts the user's own program on N ranks.
#include "launcher/columns.h"
#include "launcher/commands/command.h"
#include "launcher/help.h"
#include "launcher/processes.h"
#include "launcher/refuse.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// Adds to the usage what stands after --, of which CLI11 knows nothing.
class UsageWithProgram : public HelpFormatter {
 public:
  using HelpFormatter::HelpFormatter;
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = HelpFormatter::make_usage(app, std::move(name));
    while (usage.ends_with('\n')) usage.pop_back();
    return usage + " -- PROGRAM [ARGUMENT...]\n";
  }
};

/// Returns the variable that keeps each rank's libraries from starting a thread for every core of the machine, as torchrun sets
/// it: where several ranks share the machine and nobody has set it. Says so.
std::vector<std::pair<std::string, std::string>> threads_variable(const GlobalOptions& global) {
  constexpr const char* kVariable = "OMP_NUM_THREADS";
  if (std::getenv(kVariable) != nullptr) return {};
  // The default of --threads is for tsprun's own kernels: a program may have threads of other kinds.
  const bool typed = global.threads.given();
  if (!typed && ranks_here(global).count == 1) return {};
  const int threads = typed ? global.threads.value : 1;
  spdlog::info("{}={} for each rank, as it isn't set{}", kVariable, threads,
               typed ? "" : fmt::format("; with {}=N its libraries may start N threads", kVariable));
  return {{kVariable, std::to_string(threads)}};
}

class Run : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "run",
            .help = "launch your own program on N ranks: tsprun -n 4 run -- ./my_program args",
            .examples = {"tsprun -n 4 run -- ./my_program arguments",
                         "tsprun -n 4 --no-prefix --timeout 60 run -- python3 script.py"},
            .has_trace = true,
            .has_steps = true,
            .processes_per_rank = 2,
            .multiplies = false};
  }

  void declare(OptionTable& table) override {
    constexpr std::int64_t kMostWithin = 86'400;
    table.add("--save-within SECONDS", save_within_,
              "that programs may take to save and end after a signal, before they are killed; if given, after another rank's "
              "failure, too; 0: not at all",
              Whole{0, kMostWithin});
  }

  void describe(CLI::App& app) const override {
    app.formatter(std::make_shared<UsageWithProgram>(prose_columns()));
    app.footer(
        "Everything after -- is the program and its arguments. It finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT in its environment, and OMP_NUM_THREADS: --threads, or 1 beside other ranks, where it isn't "
        "set. Rank 0 has stdin, the others /dev/null. The exit code is that of the "
        "first rank that failed, or 128 + its signal.");
  }

  void validate(const GlobalOptions& global) override {
    if (global.program.empty()) refuse("run: no program; write it after --, such as: tsprun -n 4 run -- ./my_program");
    if (!global.trace_options.whole_job())
      refuse(fmt::format("--trace-steps {}: a program is traced whole; leave it out", global.trace_options.steps.text));
    const std::string& program = global.program.front();
    if (const std::string why = why_not_run(program); !why.empty()) refuse(fmt::format("run -- {}: {}", program, why));
  }

  int run(const GlobalOptions& global, Report& report) override {
    JobSpec spec;
    spec.global = &global;
    spec.program = global.program;
    spec.environment = threads_variable(global);
    const std::uint64_t within_ns = save_within_ * 1'000'000'000;
    spec.patience = {.after_signal_ns = within_ns, .after_failure_ns = save_within_.given() ? within_ns : 0};
    return run_job(spec, report);
  }

 private:
  Given<std::uint64_t> save_within_{25};
};

}  // namespace

std::unique_ptr<Command> make_run() { return std::make_unique<Run>(); }

}  // namespace tsprun::detail::launcher
