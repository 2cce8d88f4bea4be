// Aligns columns, and quotes the cells of CSV.
#include "launcher/table.h"

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kGap = 2;

/// Returns the number of UTF-8 characters, each counted as one column.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Returns a value as a cell of CSV: a text in quotes if it has commas, quotes or newlines.
std::string quoted(const nlohmann::ordered_json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + '"';
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

std::vector<std::string> Table::lines(std::size_t columns) const {
  std::vector<std::size_t> shown;
  std::vector<std::size_t> widths(columns_.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].head.empty()) continue;
    shown.push_back(i);
    widths[i] = width(columns_[i].head);
    for (const std::vector<Cell>& cells : rows_) widths[i] = std::max(widths[i], width(cells[i].text));
  }
  std::vector<std::string> result;
  for (std::size_t first = 1, last = 1; last < shown.size() || result.empty(); first = last) {
    std::vector<std::size_t> block = {shown[0]};
    for (std::size_t all = widths[shown[0]]; last < shown.size(); ++last) {
      all += kGap + widths[shown[last]];
      if (all > columns && last > first) break;
      block.push_back(shown[last]);
    }
    const auto line_of = [&](const auto& text_of) {
      std::string line;
      for (const std::size_t i : block) {
        const std::string blanks(widths[i] - width(text_of(i)), ' ');
        if (i != shown[0]) line.append(kGap, ' ');
        line += columns_[i].align == Align::left ? text_of(i) + blanks : blanks + text_of(i);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      result.push_back(std::move(line));
    };
    line_of([&](std::size_t i) -> const std::string& { return columns_[i].head; });
    for (const std::vector<Cell>& cells : rows_) line_of([&](std::size_t i) -> const std::string& { return cells[i].text; });
  }
  return result;
}

std::string Table::csv() const {
  std::string text;
  const auto line_of = [&](const auto& value_of) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!columns_[i].field.empty()) text += value_of(i) + ',';
    }
    text.back() = '\n';
  };
  line_of([&](std::size_t i) { return columns_[i].field; });
  for (const std::vector<Cell>& cells : rows_) line_of([&](std::size_t i) { return quoted(cells[i].value); });
  return text;
}

}  // namespace tsprun::detail::launcher
