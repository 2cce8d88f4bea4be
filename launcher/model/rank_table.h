// A table with a row for every rank that fits a screen. Ranks whose rows read the same share one row. If there are more than
// kMostRows different rows, the least and the most of every column are shown instead. Lines have at most kTableColumns
// characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Largest number of characters in a line, also where there is room for more.
inline constexpr std::size_t kTableColumns = 100;
/// Largest number of rows of different ranks.
inline constexpr std::size_t kMostRows = 8;

/// A figure of one rank.
struct RankCell {
  double value = 0;      ///< the figure, for finding the least and the most
  std::string number{};  ///< the figure as it is printed
  std::string mark{};    ///< printed after it: " =", or by how much it differs from what was expected
  bool differs = false;  ///< not as expected: such a rank's row is shown besides the least and the most
};

/// Returns a cell with bytes in MiB (fewer than 1024 as "12B") and, if there is a prediction, the difference: "1.250 =", or
/// "1.250 +12" if it is 12 bytes more.
RankCell bytes_cell(std::uint64_t measured, std::optional<std::uint64_t> predicted);
/// Returns a difference in bytes as text: "+12", "-3.4K", "+1.2M"; suffixes are powers of 1024. Never "+0" for two different
/// numbers.
std::string difference_text(std::uint64_t measured, std::uint64_t predicted);

/// The table's figures.
struct RankTable {
  std::vector<std::string> heads;
  std::vector<std::vector<RankCell>> ranks;  ///< by rank: one cell per head
  std::vector<RankCell> sum{};               ///< the last row, headed "sum"; empty: none

  /// Returns the table as lines of at most `columns` characters, without a title. Columns that don't fit side by side come in
  /// further blocks.
  std::vector<std::string> lines(std::size_t columns = kTableColumns) const;
};

}  // namespace tsprun::detail::launcher
