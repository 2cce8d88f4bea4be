#include "launcher/plan/text_table.h"

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {

/// Returns the number of UTF-8 characters, each counted as one column.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::string_view indent) {
  std::vector<std::string> lines;
  std::string before;
  while (before.size() + text.size() > columns) {
    const std::size_t space = text.rfind(' ', columns - before.size());
    if (space == std::string_view::npos || space == 0) break;
    lines.push_back(before + std::string(text.substr(0, space)));
    text.remove_prefix(space + 1);
    before = indent;
  }
  lines.push_back(before + std::string(text));
  return lines;
}

std::vector<std::string> TextTable::lines() const {
  std::vector<std::size_t> widths;
  for (const auto& cells : rows_) {
    widths.resize(std::max(widths.size(), cells.size()));
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], width(cells[i]));
  }
  std::vector<std::string> result;
  for (const auto& cells : rows_) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string blanks(widths[i] - width(cells[i]), ' ');
      if (i > 0) line += "  ";
      line += i == 0 || i >= left_from_ ? cells[i] + blanks : blanks + cells[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result.push_back(std::move(line));
  }
  return result;
}

}  // namespace tsprun::detail::launcher
