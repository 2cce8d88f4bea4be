// Fills descriptions and prose.
#include "launcher/help.h"

#include "launcher/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {

/// Blanks before a description that has no room beside its name.
constexpr std::size_t kIndent = 6;
/// Columns for descriptions beside names, below which they stand under them.
constexpr std::size_t kFewestBeside = 36;
constexpr std::string_view kCommandLine = "  tsprun ";

std::string lines_of(const std::vector<std::string>& lines) { return fmt::format("{}\n", fmt::join(lines, "\n")); }

}  // namespace

std::vector<std::string> shell_lines(std::string_view command, std::size_t columns) {
  constexpr std::string_view kMore = " \\";
  std::vector<std::string> lines;
  std::string before;
  while (text_columns(before) + text_columns(command) > columns) {
    std::size_t at = std::string_view::npos;
    char quote = 0;
    for (std::size_t i = command.find_first_not_of(' '); i < command.size(); ++i) {
      const char c = command[i];
      if (c == '\'' || c == '"') {
        if (quote == 0) quote = c;
        else if (quote == c) quote = 0;
      }
      if (c != ' ' || quote != 0) continue;
      const bool fits = text_columns(before) + text_columns(command.substr(0, i)) + kMore.size() <= columns;
      if (!fits && at != std::string_view::npos) break;
      at = i;
      if (!fits) break;
    }
    if (at == std::string_view::npos) break;
    lines.push_back(fmt::format("{}{}{}", before, command.substr(0, at), kMore));
    command.remove_prefix(at + 1);
    before = std::string(kIndent, ' ');
  }
  lines.push_back(before + std::string(command));
  return lines;
}

std::string filled(std::string_view text, std::size_t columns) {
  std::string result;
  std::string paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) result += lines_of(wrapped(paragraph, columns, ""));
    paragraph.clear();
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.front() != ' ') {
      paragraph += (paragraph.empty() ? "" : " ") + std::string(line);
      // A heading ends with itself.
      if (line.back() == ':') end_paragraph();
      continue;
    }
    end_paragraph();
    const std::string indent(std::min(line.find_first_not_of(' '), line.size()), ' ');
    result += lines_of(line.starts_with(kCommandLine) ? shell_lines(line, columns) : wrapped(line, columns, indent));
  }
  end_paragraph();
  return result;
}

std::string HelpFormatter::entry(const std::string& name, const std::string& text) const {
  const bool beside = columns_ >= column_width_ + kFewestBeside;
  const std::size_t column = beside ? column_width_ : kIndent;
  std::string result = "  " + name;
  std::size_t at = text_columns(result);
  for (const std::string& line : text.empty() ? std::vector<std::string>() : wrapped(text, columns_ - column, "")) {
    // Names end a blank before the column, at the latest.
    if (at >= column || !beside) {
      result += '\n';
      at = 0;
    }
    result += std::string(column - at, ' ') + line;
    at = column;
  }
  return result + '\n';
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return filled(CLI::Formatter::make_description(app), columns_);
}

std::string HelpFormatter::make_footer(const CLI::App* app) const { return filled(CLI::Formatter::make_footer(app), columns_); }

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  return entry(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return entry(command->get_display_name(true), command->get_description());
}

}  // namespace tsprun::detail::launcher
