// Builds the CLI11 application from all commands, refuses what they can't use, and writes the report at the end.
#include "launcher/cli.h"

#include "core/collectives/choice.h"
#include "core/kernels/level.h"
#include "launcher/columns.h"
#include "launcher/command_line.h"
#include "launcher/command_list.h"
#include "launcher/commands/command.h"
#include "launcher/gemm_trial.h"
#include "launcher/help.h"
#include "launcher/log_sink.h"
#include "launcher/lone_start.h"
#include "launcher/outputs.h"
#include "launcher/refuse.h"
#include "launcher/signals.h"
#include "launcher/standard_output.h"
#include "launcher/starter.h"
#include "transport/cause.h"
#include "transport/environment.h"
#include "transport/log.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

namespace tsprun::detail::launcher {

namespace {

constexpr int kRefused = 2;
constexpr int kFailed = 1;

void set_up_logging(const GlobalOptions& options) {
  auto logger = std::make_shared<spdlog::logger>("tsprun", std::make_shared<LogSink>());
  logger->set_pattern("tsprun: %l: %v");
  logger->set_level(options.quiet ? spdlog::level::err : spdlog::level::from_str(options.log_level));
  use_logger(logger);
  spdlog::set_default_logger(std::move(logger));
}

void say(const std::string& message) { fmt::print(stderr, "tsprun: {}\n", message); }

/// Writes the report. A command's failure keeps its exit code; a report that can't be written turns only a success into a
/// failure.
int write_report(Report& report, int code) {
  const std::string trouble = report.write();
  if (trouble.empty()) return code;
  say(trouble);
  return code == 0 ? kFailed : code;
}

/// Flushes stdout. If the output is lost, a successful command has failed. Nothing is said if the reader has gone (`| head`).
int flush_output(int code, Report* report = nullptr) {
  const int lost = flush_printed();
  if (lost == 0) return code;
  if (lost != EPIPE) say(output_trouble(lost));
  if (report != nullptr && report->root()["failure"].is_null()) report->set_failure(output_failure(lost), {});
  return code == 0 ? output_lost_code(lost) : code;
}

/// Reports a request that was refused.
void report_refusal(Report& report, const std::string& command, const std::string& message) {
  report.root()["command"] = command;
  report.set_failure(refusal(message), {});
  write_report(report, kRefused);
}

/// Takes TSP_ALGORITHMS, TSP_KERNELS and TSP_GEMM into the options, and chooses the library of products for this process and the
/// ranks that it will fork. Refuses algorithms that ChoiceTable can't read, a level that this machine doesn't offer, and
/// variables that the command would ignore.
void take_environment(const Environment& environment, const CommandFacts& command, GlobalOptions& global) {
  global.algorithms = environment.algorithms();
  try {
    const ChoiceTable table(global.algorithms);
  } catch (const Error& error) {
    refuse(fmt::format("TSP_ALGORITHMS={}: {}", global.algorithms, error.what()));
  }
  if (const std::optional<std::string_view> text = environment.kernels()) {
    const std::optional<kernels::Level> level = kernels::level_from_name(*text);
    if (!level)
      refuse(
          fmt::format("TSP_KERNELS={}: baseline, avx2, avx512, avx512_bf16 and amx_bf16 work on x86-64, baseline and neon on "
                      "aarch64",
                      *text));
    if (!kernels::offers(*level))
      refuse(fmt::format("TSP_KERNELS={}: this machine doesn't offer it; its best is {}", *text,
                         kernels::name(global.kernel_level)));
    global.kernel_level = *level;
  }
  if (!global.gemm.given()) global.gemm = kernels::gemm_library_from(environment);
  kernels::set_gemm_library(global.gemm);
  const std::string_view gemm = global.gemm.given() ? std::string_view(global.gemm.text) : environment.gemm();
  if (command.multiplies && gemm == "auto") {
    global.gemm = kernels::automatic_gemm_library([&] { try_gemm_library(global.kernel_level); });
    kernels::set_gemm_library(global.gemm);
  }
  if (command.name != "run") refuse_ignored_variables(environment, command.name);
}

[[noreturn]] void refuse_of_ranks(const CommandFacts& command, const std::string& option, const std::string& value) {
  refuse(fmt::format("{}{}{}: {} has no ranks; leave it out", option, value.empty() ? "" : " ", value, command.name));
}

/// Refuses options that only ranks heed if the command starts none.
void check_ranks_fit(const CommandFacts& command, const OptionTable& options) {
  if (command.has_ranks()) return;
  for (const OptionRow& row : options.rows()) {
    if (row.is(Trait::of_ranks) && !row.typed().empty())
      refuse_of_ranks(command, row.name(), row.metavar.empty() ? "" : fmt::format("{}", fmt::join(row.typed(), " ")));
  }
}

/// Refuses faults that the command can't inject.
void check_faults_fit(const CommandFacts& command, const GlobalOptions& global) {
  for (const fault::Spec& spec : global.faults.values) {
    if (spec.step == 0 || command.has_steps) continue;
    const std::string instead =
        spec.strikes_rank() ? fmt::format("name an operation, such as kill:rank={},op=all_gather,seq=1", std::max(spec.rank, 0))
                            : fmt::format("name a message: try drop:from={},to={},nth=1", spec.from, spec.to);
    refuse(fmt::format("--fault {}: {} has no training steps; {}", spec.text, command.name, instead));
  }
}

/// Returns the names of the commands of which a fact holds, for messages: "train, eval".
std::string commands_with(bool CommandFacts::*fact) {
  std::vector<std::string> names;
  for (const std::unique_ptr<Command>& command : all_commands()) {
    if (command->facts().*fact) names.push_back(command->facts().name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns the end of `tsprun COMMAND --help`: examples, and the names of the options that all commands share.
std::string help_footer(const OptionTable& global, std::span<const std::string_view> examples) {
  std::vector<std::string> names;
  for (const OptionRow& row : global.rows()) names.push_back(row.names);
  std::string text = "Examples:\n";
  for (const std::string_view line : examples) text += fmt::format("  {}\n", line);
  return text + fmt::format("\nGlobal options, before or after the command (`tsprun --help` explains them):\n  {}",
                            fmt::join(names, " "));
}

const char* environment_variable(const char* name) { return std::getenv(name); }

/// Returns the line of a command's --help that begins with "Usage: ", without these words.
std::string usage_of(const CLI::App& command) {
  constexpr std::string_view kBegin = "Usage: ";
  const std::string line = command.help("tsprun");
  const std::size_t at = line.find(kBegin) + kBegin.size();
  return line.substr(at, line.find('\n', at) - at);
}

/// Validates and runs a command, and writes the report. `options`: the command's; `complaint`: what is wrong with the command
/// line itself; empty: nothing.
int execute(Command& command, const OptionTable& options, GlobalOptions& global, const OptionTable& global_options,
            const std::string& complaint) {
  const CommandFacts facts = command.facts();
  set_up_logging(global);
  Report report(global.json);
  std::optional<TraceToStandardOutput> trace_to_stdout;
  try {
    if (!complaint.empty()) refuse(complaint);
    command.hand_over(global);
    global.columns = table_columns();
    const std::string taken = facts.ranks == RankUse::job ? take_from_starter(global, environment_variable) : "";
    check_ranks_fit(facts, global_options);
    validate_global(global, facts.ranks, facts.processes_per_rank);
    if (facts.ranks == RankUse::none && global.ranks.given()) refuse_of_ranks(facts, "-n", global.ranks.text);
    if (facts.ranks == RankUse::none && global.layout.given()) refuse_of_ranks(facts, "--layout", global.layout.text);
    set_up_logging(global);
    if (!taken.empty()) spdlog::info("{}", taken);
    if (const std::string alone = facts.ranks == RankUse::job ? lone_start(global, environment_variable) : ""; !alone.empty())
      spdlog::warn("{}", alone);
    if (!global.program.empty() && facts.name != "run")
      refuse(fmt::format("{} -- {}: only `run` starts a program", facts.name, global.program.front()));
    if (!global.trace.empty() && !facts.has_trace) {
      refuse(fmt::format("--trace {}: {} has no trace; these write one: {}", global.trace, facts.name,
                         commands_with(&CommandFacts::has_trace)));
    }
    if (global.trace_options.profile && !facts.has_profile) {
      refuse(fmt::format("--profile: {} has none; these print one: {}", facts.name, commands_with(&CommandFacts::has_profile)));
    }
    if (!facts.has_steps) check_trace_steps(global.trace_options, facts.name, 0, 0);
    if (global.trace == "-") {
      if (global.several_machines) refuse("--trace -: the nodes' ranks write one file in turn; name a file");
      trace_to_stdout.emplace();
      global.trace = trace_to_stdout->path();
    }
    take_environment(Environment(), facts, global);
    check_faults_fit(facts, global);
    options.parse();
    command.validate(global);
    global.inputs = command.inputs();
  } catch (const Error& error) {
    say(error.what());
    report_refusal(report, facts.name, error.what());
    return kRefused;
  }
  if (facts.has_ranks()) {
    for (const std::string& line : ignored_options(global, facts.ranks)) spdlog::warn("{}", line);
  }
  report.begin(facts.name, global, facts.has_ranks());
  int code = kFailed;
  try {
    code = command.run(global, report);
  } catch (const Error& error) {
    // Ranks throw in their own processes; an error that arrives here kept them from starting.
    say(error.what());
    report_refusal(report, facts.name, error.what());
    return error.cause() == Cause::refused || error.cause() == Cause::out_of_memory ? kRefused : kFailed;
  }
  code = flush_output(code, &report);
  if (trace_to_stdout) {
    if (const int error = trace_to_stdout->copy(); error != 0) {
      say(fmt::format("--trace -: writing the trace: {}", std::strerror(error)));
      if (code == 0) report.set_failure(refusal("--trace -: stdout took no more"), {});
      code = std::max(code, kFailed);
    }
  }
  const int result = write_report(report, code);
  end_by_late_signal();
  return result;
}

}  // namespace

int tsprun(int argc, const char* const* argv) {
  open_standard_streams();
  // A reader that goes away becomes an error of write(), which is handled where it happens. Ranks and programs get the default
  // back.
  std::signal(SIGPIPE, SIG_IGN);
  // A request for the board is ignored while there is none, before and between jobs; a job blocks the signal and reads it.
  for (const int signal : kAskingSignals) std::signal(signal, SIG_IGN);
  try {
    CLI::App app("tsprun: transformer parallelism run for real, a process per rank", "tsprun");
    app.formatter(std::make_shared<HelpFormatter>(prose_columns()));
    app.require_subcommand(1);
    app.set_version_flag("--version", std::string("tsprun ") + TSP_VERSION);
    GlobalOptions global;
    global.secret_of_environment = take_secret_from_environment();
    OptionTable global_table(global);
    global_table.bind(app);
    const std::vector<std::unique_ptr<Command>> commands = all_commands();
    std::map<const CLI::App*, std::pair<Command*, OptionTable>> by_app;
    std::vector<const CLI::App*> apps = {&app};
    const bool listing = argc == 2 && std::string_view(argv[1]) == "--list-commands";
    std::vector<ListedCommand> listed;
    for (const auto& command : commands) {
      const CommandFacts facts = command->facts();
      CLI::App* sub = app.add_subcommand(facts.name, facts.help);
      sub->fallthrough();
      OptionTable table;
      command->declare(table);
      table.bind(*sub);
      command->describe(*sub);
      const std::string own = sub->get_footer();
      sub->footer(own + (own.empty() ? "" : "\n\n") + help_footer(global_table, facts.examples));
      const auto& added = by_app.emplace(sub, std::pair(command.get(), std::move(table))).first->second;
      if (listing) listed.push_back({facts, usage_of(*sub), own, added.second});
      apps.push_back(sub);
    }
    // Set after the commands are made, because they would inherit it.
    app.footer(
        "SIZE is a number of bytes, or one with K, M, G or T behind it: powers of 1024, and so are KB and KiB.\n\n"
        "`tsprun COMMAND --help` tells a command's own options, with examples.");

    if (listing) {
      print_text(command_list(app.get_description(), global_table, listed).dump(1) + '\n');
      return flush_output(0);
    }

    // Words after -- belong to the user's program and aren't interpreted here.
    std::vector<std::string> words(argv + 1, argv + argc);
    const auto dashes = std::find(words.begin(), words.end(), "--");
    if (dashes != words.end()) {
      global.program.assign(dashes + 1, words.end());
      words.erase(dashes, words.end());
    }
    if (const std::string misleading = misleading_words(apps, words); !misleading.empty()) {
      say(misleading);
      return kRefused;
    }
    global.words = words;
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    try {
      app.parse(words);
    } catch (const CLI::Success& success) {
      std::ostringstream text;
      const int code = app.exit(success, text, text);
      print_text(text.str());
      return flush_output(code);
    } catch (const CLI::ParseError& error) {
      say(explain(app, error));
      return kRefused;
    }
    const CLI::App* chosen = app.get_subcommands().front();
    const auto& [command, table] = by_app.at(chosen);
    global.typed = typed_options(global_table, table);
    // Before the report's file is emptied, as it might be one that the command reads.
    if (const std::string trouble = outputs_trouble(global_table, table); !trouble.empty()) {
      say(trouble);
      return kRefused;
    }
    if (wants_standard_output(global_table, table)) lend_standard_output();
    const std::string empty = empty_value(app);
    return execute(*command, table, global, global_table, empty.empty() ? empty_value(*chosen) : empty);
  } catch (const Error& error) {
    say(error.what());
    return error.cause() == Cause::refused ? kRefused : kFailed;
  } catch (const std::exception& error) {
    say(error.what());
    return kFailed;
  }
}

}  // namespace tsprun::detail::launcher
