// The look of --help: it fits the terminal.
#pragma once

#include <CLI/CLI.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Writes --help as CLI11 does, with at most `columns` columns: descriptions go on below themselves, prose is filled, and
/// a long command line goes on after a backslash.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::size_t columns) : columns_(columns) {}

  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;

 private:
  std::string entry(const std::string& name, const std::string& text) const;

  std::size_t columns_;
};

/// Returns a text with lines of at most `columns` columns. Lines that begin with a blank are filled each by itself; of these,
/// command lines ("  tsprun …") are broken for a shell. Others are filled together, up to an empty line.
std::string filled(std::string_view text, std::size_t columns);

/// Returns a command line as lines for a shell: all but the last end in a backslash, and none is broken within quotes.
std::vector<std::string> shell_lines(std::string_view command, std::size_t columns);

}  // namespace tsprun::detail::launcher
