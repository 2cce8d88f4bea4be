// A table of texts: the first column left-aligned, the others right-aligned, as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace tsprun::launcher {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heads) { rows_.push_back(std::move(heads)); }
  /// Columns from here on are left-aligned too: for words at the end of a line.
  void left_from(std::size_t column) { left_from_ = column; }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// A line each, without the final newline or trailing blanks.
  std::vector<std::string> lines() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::size_t left_from_ = static_cast<std::size_t>(-1);
};

}  // namespace tsprun::launcher
