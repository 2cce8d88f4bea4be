// A table of texts: the first column is left-aligned, the others right-aligned, each as wide as its widest cell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the text in lines of at most `columns` bytes, broken at blanks; lines after the first begin with `indent`. A word that
/// is longer stays whole.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::string_view indent);

/// Collects rows and formats them together. Every row has as many cells as there are heads.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heads) { rows_.push_back(std::move(heads)); }
  /// Left-aligns the columns from `column` on too, for words at the end of a line.
  void left_from(std::size_t column) { left_from_ = column; }
  /// Adds a row.
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// Returns one line for each row, without a final newline or trailing blanks.
  std::vector<std::string> lines() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::size_t left_from_ = static_cast<std::size_t>(-1);
};

}  // namespace tsprun::detail::launcher
