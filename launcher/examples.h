// The end of `tsprun COMMAND --help`: examples, and the names of the options that all commands share.
#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Returns command lines that work as they stand, if the files that they name exist; empty for a command that doesn't exist.
std::span<const std::string_view> examples_of(std::string_view command);

/// Returns the end of a command's manual. `app`: the application with its global options.
std::string help_footer(const CLI::App& app, std::string_view command);

}  // namespace tsprun::detail::launcher
