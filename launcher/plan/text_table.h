// A table of texts: the first column is left-aligned, the others right-aligned, each as wide as its widest cell.
#pragma once

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

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
