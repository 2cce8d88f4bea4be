// Aligns columns, and quotes the cells of CSV.
#include "launcher/table.h"

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kGap = 2;

/// Columns that a column of prose gets at least, before it moves to a block of its own.
constexpr std::size_t kNarrowProse = 24;

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

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

std::size_t text_columns(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::string_view indent) {
  std::vector<std::string> lines;
  std::string before;
  while (text_columns(before) + text_columns(text) > columns) {
    // The last blank that has room for what stands before it, or else the first.
    std::size_t at = std::string_view::npos;
    std::size_t used = text_columns(before);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ' ' && text.find_first_not_of(' ') < i) {
        if (used <= columns || at == std::string_view::npos) at = i;
        if (used >= columns) break;
      }
      if (begins_character(text[i])) ++used;
    }
    if (at == std::string_view::npos) break;
    lines.push_back(before + std::string(text.substr(0, at)));
    text.remove_prefix(at + 1);
    before = indent;
  }
  lines.push_back(before + std::string(text));
  return lines;
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths(columns_.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths[i] = text_columns(columns_[i].head);
    for (const std::vector<Cell>& cells : rows_) widths[i] = std::max(widths[i], text_columns(cells[i].text));
  }
  return widths;
}

std::size_t Table::filled_width(std::size_t column, std::size_t most) const {
  std::size_t width = text_columns(columns_[column].head);
  std::size_t longest_word = width;
  for (const std::vector<Cell>& cells : rows_) {
    width = std::max(width, text_columns(cells[column].text));
    for (const std::string& word : wrapped(cells[column].text, 1, "")) longest_word = std::max(longest_word, text_columns(word));
  }
  return width <= most || columns_[column].align == Align::right ? width : std::max(most, longest_word);
}

std::vector<std::string> Table::lines(std::size_t columns) const {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (!columns_[i].head.empty()) shown.push_back(i);
  }
  std::vector<std::size_t> widths = this->widths();
  std::size_t whole = 0;
  for (const std::size_t i : shown) whole += widths[i] + kGap;
  // The first column stands in all blocks, so it doesn't take more than its share.
  if (whole > columns) widths[shown[0]] = filled_width(shown[0], columns * 2 / 5);
  std::vector<std::string> result;
  for (std::size_t first = 1, last = 1; last < shown.size() || result.empty(); first = last) {
    std::vector<std::size_t> block;
    std::size_t all = 0;
    for (std::size_t i = 0; i < first; ++i) {
      if (i != 0 && !columns_[shown[i]].repeats) continue;
      all += (block.empty() ? 0 : kGap) + widths[shown[i]];
      block.push_back(shown[i]);
    }
    for (; last < shown.size(); ++last) {
      const std::size_t column = shown[last];
      const std::size_t room = columns - std::min(columns, all + kGap);
      if (room >= kNarrowProse || last == first) widths[column] = filled_width(column, room);
      all += kGap + widths[column];
      if (all > columns && last > first) break;
      block.push_back(column);
    }
    block_lines(result, block, widths);
  }
  return result;
}

void Table::block_lines(std::vector<std::string>& result, const std::vector<std::size_t>& block,
                        const std::vector<std::size_t>& widths) const {
  // A cell that is wider than its column goes on below.
  const auto add = [&](const auto& text_of) {
    std::vector<std::vector<std::string>> cells;
    std::size_t height = 1;
    for (const std::size_t i : block) {
      cells.push_back(wrapped(text_of(i), widths[i], ""));
      height = std::max(height, cells.back().size());
    }
    for (std::size_t row = 0; row < height; ++row) {
      std::string line;
      for (std::size_t at = 0; at < block.size(); ++at) {
        const std::string& text = row < cells[at].size() ? cells[at][row] : std::string();
        const std::size_t width = widths[block[at]];
        const std::string blanks(width - std::min(width, text_columns(text)), ' ');
        if (at != 0) line.append(kGap, ' ');
        line += columns_[block[at]].align == Align::left ? text + blanks : blanks + text;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      result.push_back(std::move(line));
    }
  };
  add([&](std::size_t i) -> const std::string& { return columns_[i].head; });
  for (const std::vector<Cell>& cells : rows_) add([&](std::size_t i) -> const std::string& { return cells[i].text; });
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
