// Says in plain sentences what is wrong with a command line: checks of the words before CLI11 parses them, and explanations of
// what CLI11 refused. CLI11's own messages name neither what was typed nor what would work.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the refusal of words that would be misunderstood, such as `--json=`, `-np 4`, an option in the place of another's
/// value, or an option of another program. Empty: there are none. `apps`: the application and all its commands; `words`: what
/// follows the program's name, up to `--`.
std::string misleading_words(const std::vector<const CLI::App*>& apps, const std::vector<std::string>& words);

/// Returns the refusal of the first option whose value is empty; empty: there is none. An empty value usually comes from an unset
/// shell variable, and must not silently drop a budget, say.
std::string empty_value(const CLI::App& app);

/// Returns what CLI11 refused, explained in our words.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace tsprun::detail::launcher
