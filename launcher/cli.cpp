#include "launcher/cli.h"

#include "launcher/commands/command.h"
#include "launcher/environment.h"
#include "launcher/standard_output.h"
#include "transport/cause.h"
#include "transport/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <sstream>

namespace tsp::launcher {

namespace {

constexpr int kRefused = 2;
constexpr int kFailed = 1;

void set_up_logging(const GlobalOptions& options) {
  auto logger = std::make_shared<spdlog::logger>("tsprun", std::make_shared<spdlog::sinks::stderr_sink_st>());
  logger->set_pattern("tsprun: %l: %v");
  logger->set_level(options.quiet ? spdlog::level::err : spdlog::level::from_str(options.log_level));
  use_logger(logger);
  spdlog::set_default_logger(std::move(logger));
}

void say(const std::string& message) { fmt::print(stderr, "tsprun: {}\n", message); }

std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + each->get_name();
  }
  return names;
}

/// What was not expected, in words: CLI11 hands out the bare texts.
std::string unexpected(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto option =
      std::find_if(extras.begin(), extras.end(), [](const std::string& text) { return text.size() > 1 && text[0] == '-'; });
  const auto chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? std::string() : chosen.front()->get_name();
  const std::string manual = command.empty() ? "tsprun --help" : fmt::format("tsprun {} --help", command);
  if (option != extras.end()) return fmt::format("unknown option {}; `{}` lists those that there are", *option, manual);
  if (extras.empty()) return fmt::format("no command; there are {}", command_names(app));
  if (command == "run")
    return fmt::format("run {}: write -- before the program: tsprun run -- {}", extras.front(), extras.front());
  if (!command.empty()) return fmt::format("{} {}: unexpected; `{}` says what it takes", command, extras.front(), manual);
  return fmt::format("unknown command {}; there are {}", extras.front(), command_names(app));
}

std::string refusal_of_empty(const CLI::Option& option) {
  const std::string name = !option.get_snames().empty()   ? "-" + option.get_snames().front()
                           : !option.get_lnames().empty() ? "--" + option.get_lnames().front()
                                                          : option.get_name();
  return fmt::format("{}: an empty value; give it one{}", name, option.get_required() ? "" : ", or leave it out");
}

/// An empty value means nothing: what comes of an unset shell variable shall not silently drop a budget. The refusal of the first
/// such option; empty: there is none.
std::string empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    const bool takes_some = option->get_items_expected_max() > 0;
    if (takes_some && std::find(values.begin(), values.end(), "") != values.end()) return refusal_of_empty(*option);
  }
  return {};
}

/// The same for `--json=`, of which CLI11 would take the next word for the value.
std::string empty_assignment(const std::vector<const CLI::App*>& apps, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (!word.starts_with("--") || !word.ends_with('=')) continue;
    for (const CLI::App* app : apps) {
      const CLI::Option* option = app->get_option_no_throw(word.substr(0, word.size() - 1));
      if (option != nullptr && option->get_items_expected_max() > 0) return refusal_of_empty(*option);
    }
  }
  return {};
}

/// What happened is known and stays: a report that can't be written only spoils a success.
int write_report(Report& report, int code) {
  const std::string trouble = report.write();
  if (trouble.empty()) return code;
  say(trouble);
  return code == 0 ? kFailed : code;
}

/// What was printed must have arrived, or the command has failed. A reader that has gone (`| head`) knows that without words.
int flush_output(int code, Report* report = nullptr) {
  const int lost = flush_printed();
  if (lost == 0) return code;
  if (lost != EPIPE) say(output_trouble(lost));
  if (report != nullptr && report->root()["failure"].is_null()) report->set_failure(output_failure(lost), {});
  return code == 0 ? output_lost_code(lost) : code;
}

/// The report of a request that was refused, if it is known where to write it.
void report_refusal(Report& report, const std::string& command, const std::string& message) {
  Failure failure;
  failure.cause = Cause::refused;
  failure.detail = message;
  report.root()["command"] = command;
  report.set_failure(failure, {});
  write_report(report, kRefused);
}

/// Faults that the command can't inject.
void check_faults(const Command& command, const GlobalOptions& global) {
  for (const fault::Spec& spec : global.faults) {
    if (!command.has_ranks()) throw Error(Cause::refused, fmt::format("--fault {}: {} has no ranks", spec.text, command.name()));
    if (spec.step != 0 && !command.has_steps() && !spec.strikes_rank()) {
      throw Error(Cause::refused,
                  fmt::format("--fault {}: {} has no training steps; name a message: try drop:from={},to={},nth=1", spec.text,
                              command.name(), spec.from, spec.to));
    }
    if (spec.step != 0 && !command.has_steps()) {
      throw Error(Cause::refused, fmt::format("--fault {}: {} has no training steps; name an operation, such as "
                                              "kill:rank={},op=all_gather,seq=1",
                                              spec.text, command.name(), std::max(spec.rank, 0)));
    }
  }
}

/// `complaint`: what is wrong with the command line itself, if anything.
int execute(Command& command, GlobalOptions& global, const std::string& complaint) {
  set_up_logging(global);
  Report report(global.json);
  try {
    if (!complaint.empty()) throw Error(Cause::refused, complaint);
    validate_global(global, command.rank_use(), command.processes_per_rank());
    set_up_logging(global);
    if (!global.program.empty() && command.name() != "run") {
      throw Error(Cause::refused, fmt::format("{} -- {}: only `run` starts a program", command.name(), global.program.front()));
    }
    if (!global.trace.empty() && !command.has_trace()) {
      throw Error(Cause::refused,
                  fmt::format("--trace {}: {} has no trace; train, eval and block write one", global.trace, command.name()));
    }
    check_environment();
    check_faults(command, global);
    command.validate(global);
  } catch (const Error& error) {
    say(error.what());
    report_refusal(report, command.name(), error.what());
    return kRefused;
  }
  if (command.has_ranks()) {
    for (const std::string& line : ignored_options(global)) spdlog::warn("{}", line);
  }
  report.begin(command.name(), global, command.has_ranks());
  int code = kFailed;
  try {
    code = command.run(global, report);
  } catch (const Error& error) {
    // The command's ranks throw in their own processes: what comes here kept them from starting.
    say(error.what());
    report_refusal(report, command.name(), error.what());
    return error.cause() == Cause::refused || error.cause() == Cause::out_of_memory ? kRefused : kFailed;
  }
  return write_report(report, flush_output(code, &report));
}

}  // namespace

int tsprun(int argc, const char* const* argv) {
  open_standard_streams();
  // A reader that goes away is an error of write(), which is seen to where it happens. Ranks and programs get the default back.
  std::signal(SIGPIPE, SIG_IGN);
  // Who asks for the board while there is none, before and between jobs, gets none: a job blocks the signal and reads it.
  std::signal(SIGUSR1, SIG_IGN);
  try {
    CLI::App app("tsprun: transformer parallelism run for real, a process per rank", "tsprun");
    app.require_subcommand(1);
    app.set_version_flag("--version", std::string("tsprun ") + TSP_VERSION);
    GlobalOptions global;
    add_global_options(app, global);
    const std::vector<std::unique_ptr<Command>> commands = all_commands();
    std::map<const CLI::App*, Command*> by_app;
    std::vector<const CLI::App*> apps = {&app};
    for (const auto& command : commands) {
      CLI::App* sub = app.add_subcommand(command->name(), command->help());
      sub->fallthrough();
      command->add_options(*sub);
      by_app[sub] = command.get();
      apps.push_back(sub);
    }

    // What follows -- belongs to the user's program and isn't ours to understand.
    std::vector<std::string> words(argv + 1, argv + argc);
    const auto dashes = std::find(words.begin(), words.end(), "--");
    if (dashes != words.end()) {
      global.program.assign(dashes + 1, words.end());
      words.erase(dashes, words.end());
    }
    if (const std::string empty = empty_assignment(apps, words); !empty.empty()) {
      say(empty);
      return kRefused;
    }
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    try {
      app.parse(words);
    } catch (const CLI::Success& success) {
      std::ostringstream text;
      const int code = app.exit(success, text, text);
      print_text(text.str());
      return flush_output(code);
    } catch (const CLI::ExtrasError&) {
      say(unexpected(app, app.remaining(true)));
      return kRefused;
    } catch (const CLI::RequiredError& error) {
      say(app.get_subcommands().empty() ? unexpected(app, app.remaining(true)) : std::string(error.what()));
      return kRefused;
    } catch (const CLI::ParseError& error) {
      say(fmt::format("{}; `tsprun --help` says what there is", error.what()));
      return kRefused;
    }
    const CLI::App* chosen = app.get_subcommands().front();
    global.typed = typed_options(app, *chosen);
    const std::string empty = empty_value(app);
    return execute(*by_app.at(chosen), global, empty.empty() ? empty_value(*chosen) : empty);
  } catch (const Error& error) {
    say(error.what());
    return error.cause() == Cause::refused ? kRefused : kFailed;
  } catch (const std::exception& error) {
    say(error.what());
    return kFailed;
  }
}

}  // namespace tsp::launcher
