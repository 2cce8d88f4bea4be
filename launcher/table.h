// Tables: columns are described once, rows are added, and the same rows are written as text for people or as CSV for programs.
#pragma once

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the number of UTF-8 characters, each counted as one column.
std::size_t text_columns(std::string_view text);

/// Returns the text in lines of at most `columns` columns, broken at blanks; lines after the first begin with `indent`. A word
/// that is longer stays whole.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::string_view indent);

/// Side on which a column's texts begin or end.
enum class Align : std::uint8_t { left, right };

/// A column. Its place is the same in both forms.
struct Column {
  template <class Text>
  requires std::constructible_from<std::string, Text> Column(const Text& over, Align where = Align::right,
                                                             std::string_view in_csv = {}, bool repeated = false)
      : head(over), align(where), field(in_csv), repeats(repeated) {}

  std::string head;   ///< the words over it, with its unit: "step ms"; empty: the text doesn't have it
  Align align;        ///< in the text
  std::string field;  ///< its name in CSV; empty: CSV doesn't have it
  bool repeats;       ///< tells rows apart, so that blocks after its own have it, too; the first column always does
};

/// Content of a row's column.
struct Cell {
  template <class Text>
  requires std::constructible_from<std::string, Text> Cell(const Text& both) : text(both), value(text) {}
  /// A field of the report: its text or number, "-" for null.
  Cell(const nlohmann::ordered_json& both)
      : text(both.is_null()     ? "-"
             : both.is_string() ? both.get<std::string>()
                                : both.dump()),
        value(both) {}
  Cell(std::string shown, nlohmann::ordered_json exact) : text(std::move(shown)), value(std::move(exact)) {}

  std::string text;              ///< for people
  nlohmann::ordered_json value;  ///< for CSV; null is an empty cell
};

/// Collects rows and writes them.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Adds a row, which has as many cells as there are columns.
  void row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }

  /// Returns the heads and one line for each row, without final newlines or trailing blanks; every column is as wide as its
  /// widest cell. If lines would be longer than `columns` characters, the columns that don't fit stand in further blocks below,
  /// beside the first column again and others that repeat. A left-aligned column that is wider than a line is filled: its cells
  /// go on below themselves.
  std::vector<std::string> lines(std::size_t columns = static_cast<std::size_t>(-1)) const;
  /// Returns the rows as CSV under the names of the columns (RFC 4180, but with a plain newline at the end of a line).
  std::string csv() const;

 private:
  std::vector<std::size_t> widths() const;
  /// Returns the width of a column that should have `most` columns: its texts are filled, if they are left-aligned.
  std::size_t filled_width(std::size_t column, std::size_t most) const;
  void block_lines(std::vector<std::string>& result, const std::vector<std::size_t>& block,
                   const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace tsprun::detail::launcher
