// What is wrong with a command line, in plain sentences: the words themselves, before CLI11 takes them apart, and what it could
// not make sense of. CLI11's own phrases name neither what was typed nor what would work.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace tsprun::launcher {

/// Words that would be taken for something else than what they say: `--json=` and `-np 4`, an option in the place of another's
/// value, an option that other programs have. Empty: there are none. `apps`: the application and all its commands; `words`: what
/// follows the program's name, up to `--`.
std::string misleading_words(const std::vector<const CLI::App*>& apps, const std::vector<std::string>& words);

/// The refusal of the first option with an empty value, which means nothing: what comes of an unset shell variable shall not
/// silently drop a budget. Empty: there is none.
std::string empty_value(const CLI::App& app);

/// What CLI11 refused, said anew.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace tsprun::launcher
