// A table with a row for every rank that fits a screen: ranks whose rows read the same share one, of more than kMostRows
// different ones the least and the most of every column stand for all, and lines have at most kTableColumns characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

inline constexpr std::size_t kTableColumns = 100;
inline constexpr std::size_t kMostRows = 8;

/// One figure of a rank.
struct RankCell {
  double value = 0;      ///< by which least and most are found
  std::string number{};  ///< in print
  std::string mark{};    ///< behind it: " =", or by how much it differs from what was expected
  bool differs = false;  ///< it isn't as expected: a row of such a rank is shown among the least and the most, too
};

/// Bytes in MiB beside what was predicted, if anything was: "1.250 =", or "1.250 +12" where it is 12 bytes more.
RankCell bytes_cell(std::uint64_t measured, std::optional<std::uint64_t> predicted);
/// "+12", "-3.4K", "+1.25M": powers of 1024; never "+0" for what isn't nothing.
std::string difference_text(std::uint64_t measured, std::uint64_t predicted);

struct RankTable {
  std::vector<std::string> heads;
  std::vector<std::vector<RankCell>> ranks;  ///< by rank: a cell for each head
  std::vector<RankCell> sum{};               ///< the last row; empty: none

  /// Without a title.
  std::vector<std::string> lines() const;
};

}  // namespace tsprun::launcher
