#include "launcher/help_footer.h"

#include <fmt/format.h>

#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kColumns = 98;

/// Returns words in lines of at most kColumns, indented by two.
std::string wrapped(const std::vector<std::string>& words) {
  std::string text;
  std::size_t column = kColumns;
  for (const std::string& word : words) {
    if (column + 1 + word.size() > kColumns) {
      text += text.empty() ? "  " : "\n  ";
      column = 2;
    } else {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text;
}

}  // namespace

std::string help_footer(const OptionTable& global, std::span<const std::string_view> examples) {
  std::vector<std::string> names;
  for (const OptionRow& row : global.rows()) names.push_back(row.names);
  std::string text = "Examples:\n";
  for (const std::string_view line : examples) text += fmt::format("  {}\n", line);
  return text + fmt::format("\nGlobal options, before or after the command (`tsprun --help` explains them):\n{}", wrapped(names));
}

}  // namespace tsprun::detail::launcher
