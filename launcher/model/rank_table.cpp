// Groups equal rows, finds extremes, and aligns columns.
#include "launcher/model/rank_table.h"

#include "launcher/ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

constexpr double kMebibyte = 1 << 20;
constexpr std::size_t kLabel = 14;
constexpr std::size_t kGap = 2;
/// Most rows of ranks that differ, besides the least and the most.
constexpr std::size_t kMostDiffering = 4;

struct Row {
  std::string label;
  std::vector<std::string> cells;
};

std::vector<std::string> texts_of(const std::vector<RankCell>& cells) {
  std::vector<std::string> texts;
  for (const RankCell& cell : cells) texts.push_back(cell.number + cell.mark);
  return texts;
}

/// Returns ranks grouped by what their rows read, in the order of each group's first rank.
std::vector<std::pair<std::vector<std::string>, std::vector<int>>> groups_of(const std::vector<std::vector<RankCell>>& ranks) {
  std::vector<std::pair<std::vector<std::string>, std::vector<int>>> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<std::string> texts = texts_of(ranks[rank]);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == texts; });
    if (same != groups.end()) same->second.push_back(static_cast<int>(rank));
    else groups.push_back({texts, {static_cast<int>(rank)}});
  }
  return groups;
}

/// Returns the least and the most of every column. They carry a mark only if all ranks have the same.
std::pair<Row, Row> extremes(const std::vector<std::vector<RankCell>>& ranks) {
  Row least{"least", {}};
  Row most{"most", {}};
  for (std::size_t column = 0; column < ranks.front().size(); ++column) {
    std::vector<const RankCell*> cells;
    for (const std::vector<RankCell>& row : ranks) cells.push_back(&row[column]);
    const auto [low, high] =
        std::minmax_element(cells.begin(), cells.end(), [](const RankCell* a, const RankCell* b) { return a->value < b->value; });
    const bool alike =
        std::all_of(cells.begin(), cells.end(), [&](const RankCell* cell) { return cell->mark == cells[0]->mark; });
    const std::string mark = alike ? cells[0]->mark : "";
    least.cells.push_back((*low)->number + mark);
    most.cells.push_back((*high)->number + mark);
  }
  return {least, most};
}

std::vector<Row> rows_of(const std::vector<std::vector<RankCell>>& ranks) {
  const auto groups = groups_of(ranks);
  std::vector<Row> rows;
  if (groups.size() <= kMostRows) {
    for (const auto& [texts, members] : groups) rows.push_back({ranges_text(members, kLabel), texts});
    return rows;
  }
  const auto [least, most] = extremes(ranks);
  rows = {least, most};
  for (std::size_t rank = 0; rank < ranks.size() && rows.size() < 2 + kMostDiffering; ++rank) {
    if (std::any_of(ranks[rank].begin(), ranks[rank].end(), [](const RankCell& cell) { return cell.differs; }))
      rows.push_back({std::to_string(rank), texts_of(ranks[rank])});
  }
  return rows;
}

/// Prints columns [first, last) of all rows, with their labels.
void print_block(std::vector<std::string>& lines, std::span<const Row> rows, std::span<const std::size_t> widths,
                 std::size_t label, std::size_t first, std::size_t last) {
  for (const Row& row : rows) {
    std::string line = fmt::format("{:<{}}", row.label, label);
    for (std::size_t column = first; column < last; ++column)
      line += fmt::format("{:>{}}", row.cells[column], widths[column] + kGap);
    lines.push_back(line);
  }
}

}  // namespace

std::string difference_text(std::uint64_t measured, std::uint64_t predicted) {
  const std::uint64_t by = measured > predicted ? measured - predicted : predicted - measured;
  const char sign = measured > predicted ? '+' : '-';
  if (by < 1024) return fmt::format("{}{}", sign, by);
  if (by < 1024 * 1000) return fmt::format("{}{:.1f}K", sign, static_cast<double>(by) / 1024);
  return fmt::format("{}{:.1f}M", sign, static_cast<double>(by) / kMebibyte);
}

RankCell bytes_cell(std::uint64_t measured, std::optional<std::uint64_t> predicted) {
  const double mebibytes = static_cast<double>(measured) / kMebibyte;
  // Less than a KiB would be printed as 0.000 MiB.
  const bool tiny = measured != 0 && measured < 1024;
  RankCell cell{.value = static_cast<double>(measured),
                .number = tiny ? fmt::format("{}B", measured) : fmt::format("{:.{}f}", mebibytes, mebibytes < 1000 ? 3 : 1)};
  if (!predicted) return cell;
  cell.differs = measured != *predicted;
  cell.mark = cell.differs ? " " + difference_text(measured, *predicted) : " =";
  return cell;
}

std::vector<std::string> RankTable::lines() const {
  std::vector<Row> rows = {{"rank", heads}};
  const std::vector<Row> figures = rows_of(ranks);
  rows.insert(rows.end(), figures.begin(), figures.end());
  if (!sum.empty()) rows.push_back({"sum", texts_of(sum)});
  std::size_t label = 0;
  std::vector<std::size_t> widths(heads.size());
  for (const Row& row : rows) {
    label = std::max(label, row.label.size());
    for (std::size_t column = 0; column < widths.size(); ++column)
      widths[column] = std::max(widths[column], row.cells[column].size());
  }
  std::vector<std::string> lines;
  for (std::size_t first = 0; first < widths.size();) {
    std::size_t last = first;
    for (std::size_t width = label; last < widths.size(); ++last) {
      width += widths[last] + kGap;
      if (width > kTableColumns && last > first) break;
    }
    print_block(lines, rows, widths, label, first, last);
    first = last;
  }
  return lines;
}

}  // namespace tsprun::detail::launcher
