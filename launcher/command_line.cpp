// Finds the option or word behind each of CLI11's errors, and suggests what would work.
#include "launcher/command_line.h"

#include "launcher/suggest.h"
#include "transport/suggest.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

/// Returns an option's name as it is typed: "-n", "--json", "OP".
std::string name_of(const CLI::Option& option) {
  if (!option.get_snames().empty()) return "-" + option.get_snames().front();
  return !option.get_lnames().empty() ? "--" + option.get_lnames().front() : option.get_name();
}

/// Returns how to write an option: "--json FILE"; for one without a name "OP[,OP...]|all".
std::string usage_of(const CLI::Option& option) {
  const bool named = !option.get_snames().empty() || !option.get_lnames().empty();
  if (!named) return option.get_type_name().empty() ? option.get_name() : option.get_type_name();
  return option.get_items_expected_max() == 0 ? name_of(option) : name_of(option) + " " + option.get_type_name();
}

std::string refusal_of_empty(const CLI::Option& option) {
  return fmt::format("{}: an empty value; give it one{}", name_of(option), option.get_required() ? "" : ", or leave it out");
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

/// Returns the option that a word names, of any command; null: none.
const CLI::Option* named_by(const std::vector<const CLI::App*>& apps, const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return nullptr;
  for (const CLI::App* app : apps) {
    if (const CLI::Option* option = app->get_option_no_throw(word.substr(0, word.find('=')))) return option;
  }
  return nullptr;
}

/// Returns true if an option that the word names, of any command, needs no value.
bool may_stand_alone(const std::vector<const CLI::App*>& apps, const std::string& word) {
  return std::ranges::any_of(apps, [&](const CLI::App* app) {
    const CLI::Option* option = app->get_option_no_throw(word);
    return option != nullptr && option->get_items_expected_min() == 0;
  });
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(each->get_name());
  return names;
}

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string manual_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? "tsprun --help" : fmt::format("tsprun {} --help", chosen.front()->get_name());
}

/// Returns the commands that have such an option, when the chosen one hasn't: "train, compare".
std::string commands_with(const CLI::App& app, const std::string& option) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (each->get_option_no_throw(option.substr(0, option.find('='))) != nullptr) names.push_back(each->get_name());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns a hint for an unknown option that is near to none of the chosen command's: other commands' options, and other
/// programs'. Empty: it is near to none of these either.
std::string hint_from_afar(const CLI::App& app, const std::string& option) {
  std::vector<std::string> known;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::vector<std::string> more = long_options(*each);
    known.insert(known.end(), more.begin(), more.end());
  }
  if (const std::string meant = nearest_word(option, known); !meant.empty())
    return fmt::format(" (did you mean {}? It is one of {})", meant, commands_with(app, meant));
  known.clear();
  // "--ep-size" is no slip of "--tp-size".
  for (const auto& [elsewhere, here] : spellings_elsewhere()) {
    const std::string spelled = fmt::format("--{}", elsewhere);
    if (option.starts_with(spelled.substr(0, 3))) known.push_back(spelled);
  }
  const std::string meant = nearest_word(option, known);
  return meant.empty() ? std::string() : fmt::format(": for {} tsprun takes {}", meant, spelling_here(meant));
}

std::string unknown_option(const CLI::App& app, const std::string& option) {
  const auto chosen = app.get_subcommands();
  const std::string others = commands_with(app, option);
  if (!chosen.empty()) {
    // CLI11 takes a command's option for unknown where it comes before the command.
    const std::string command = chosen.front()->get_name();
    const CLI::Option* own = chosen.front()->get_option_no_throw(option.substr(0, option.find('=')));
    if (own != nullptr)
      return fmt::format("{}: it is an option of {} and stands behind it: tsprun {} {}", option, command, command,
                         usage_of(*own));
    if (!others.empty()) {
      return fmt::format("unknown option {} for {}: it is one of {}; `{}` lists those that there are", option, command, others,
                         manual_of(app));
    }
  } else if (!others.empty()) {
    return fmt::format("{}: it is an option of {}, and no command is given; write it behind the command", option, others);
  }
  std::vector<std::string> known = long_options(app);
  for (const CLI::App* command : chosen) {
    const std::vector<std::string> more = long_options(*command);
    known.insert(known.end(), more.begin(), more.end());
  }
  std::string meant = did_you_mean(option, known);
  if (meant.empty()) meant = hint_from_afar(app, option);
  return meant.empty() ? fmt::format("unknown option {}; `{}` lists those that there are", option, manual_of(app))
                       : fmt::format("unknown option {}{}", option, meant);
}

/// Returns the refusal of an option that took the command for its value: "-n train"; empty: none did.
std::string swallowed_command(const CLI::App& app) {
  const std::vector<std::string> commands = command_names(app);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (takes_value(*option) && std::ranges::find(commands, value) != commands.end())
        return fmt::format("{}: its value is missing before {}; write {} {}", name_of(*option), value, usage_of(*option), value);
    }
  }
  return {};
}

/// Returns the refusal of words that CLI11 couldn't use.
std::string unexpected(const CLI::App& app, const std::vector<std::string>& extras) {
  if (app.get_subcommands().empty()) {
    if (std::string swallowed = swallowed_command(app); !swallowed.empty()) return swallowed;
  }
  const auto option =
      std::find_if(extras.begin(), extras.end(), [](const std::string& text) { return text.size() > 1 && text[0] == '-'; });
  if (option != extras.end()) return unknown_option(app, *option);
  const auto chosen = app.get_subcommands();
  const std::vector<std::string> commands = command_names(app);
  if (extras.empty()) return fmt::format("no command; there are {}", fmt::join(commands, ", "));
  if (chosen.empty() && extras.front() == "help") return "unknown command help; write tsprun --help, or tsprun COMMAND --help";
  if (chosen.empty()) {
    return fmt::format("unknown command {}{}; there are {}", extras.front(), did_you_mean(extras.front(), commands),
                       fmt::join(commands, ", "));
  }
  const std::string command = chosen.front()->get_name();
  if (command == "run")
    return fmt::format("run {}: write -- before the program: tsprun run -- {}", extras.front(), extras.front());
  return fmt::format("{} {}: unexpected; `{}` says what it takes", command, extras.front(), manual_of(app));
}

std::string missing(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_required() && option->count() == 0) {
        return fmt::format("{}: {} is missing; `{}` has examples", command->get_name(), usage_of(*option), manual_of(app));
      }
    }
  }
  return fmt::format("no command; there are {}", fmt::join(command_names(app), ", "));
}

/// Returns what is wrong with an option's values; empty: nothing that can be seen here.
std::string wrong_values(const CLI::Option& option) {
  const std::vector<std::string>& values = option.results();
  const std::string name = name_of(option);
  if (values.empty()) return {};
  if (!takes_value(option)) {
    const auto odd = std::find_if(values.begin(), values.end(), [](const std::string& value) {
      return value != "true" && value != "false" && value.find_first_not_of("0123456789") != std::string::npos;
    });
    return odd == values.end() ? std::string() : fmt::format("{}={}: it takes no value; write {} alone", name, *odd, name);
  }
  if (values.size() > static_cast<std::size_t>(option.get_items_expected_max())) {
    return fmt::format("{}: given {} times ({}); give it once", name, values.size(), fmt::join(values, ", "));
  }
  return {};
}

/// Returns the option that an error is about, which CLI11 says only in words; null: none was found.
const CLI::Option* guilty(const CLI::App& app, std::string_view message) {
  const CLI::Option* found = nullptr;
  std::size_t length = 0;
  std::vector<const CLI::App*> apps = {&app};
  for (const CLI::App* command : app.get_subcommands()) apps.push_back(command);
  for (const CLI::App* each : apps) {
    for (const CLI::Option* option : each->get_options()) {
      const std::string name = option->get_name();
      const std::size_t at = message.find(name);
      if (at == std::string_view::npos || name.size() <= length) continue;
      const std::size_t end = at + name.size();
      if (end < message.size() && (std::isalnum(static_cast<unsigned char>(message[end])) != 0 || message[end] == '-')) continue;
      found = option;
      length = name.size();
    }
  }
  return found;
}

}  // namespace

std::string misleading_words(const std::vector<const CLI::App*>& apps, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (const CLI::Option* option = named_by(apps, word)) {
      const std::size_t equals = word.find('=');
      if (!takes_value(*option)) continue;
      // CLI11 would take the next word for the value.
      if (equals != std::string::npos && equals + 1 == word.size()) return refusal_of_empty(*option);
      if (equals != std::string::npos) continue;
      if (i + 1 == words.size()) {
        if (may_stand_alone(apps, word)) continue;
        return fmt::format("{}: its value is missing; write {}", word, usage_of(*option));
      }
      if (const CLI::Option* next = named_by(apps, words[++i]); next != nullptr && words[i].starts_with("--")) {
        return fmt::format("{}: its value is missing; write {} (or {}={}, if that is the value)", word, usage_of(*option), word,
                           words[i]);
      }
      continue;
    }
    if (word.size() < 2 || word[0] != '-') continue;
    if (const std::string_view here = spelling_here(word); !here.empty())
      return fmt::format("unknown option {}: tsprun takes {}", word, here);
    // "-nodes" would be -n with the value "odes".
    if (word.size() > 3 && word.starts_with("-n") && std::isalpha(static_cast<unsigned char>(word[2])) != 0)
      return fmt::format("unknown option {}{}", word, did_you_mean(word, long_options(*apps.front())));
  }
  return {};
}

std::string empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (takes_value(*option) && std::find(values.begin(), values.end(), "") != values.end()) return refusal_of_empty(*option);
  }
  return {};
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> extras = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || app.get_subcommands().empty()) return unexpected(app, extras);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) return extras.empty() ? missing(app) : unexpected(app, extras);
  const CLI::Option* option = guilty(app, error.what());
  if (option == nullptr) return fmt::format("{}; `{}` says what there is", error.what(), manual_of(app));
  if (std::string wrong = wrong_values(*option); !wrong.empty()) return wrong;
  if (option->results().empty()) return fmt::format("{}: its value is missing; write {}", name_of(*option), usage_of(*option));
  return fmt::format("{} {}: not a number; write {}", name_of(*option), option->results().back(), usage_of(*option));
}

}  // namespace tsprun::detail::launcher
