// Groups equal rows and finds extremes.
#include "launcher/model/rank_table.h"

#include "launcher/ranges.h"
#include "launcher/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

constexpr double kMebibyte = 1 << 20;
constexpr std::size_t kLabel = 14;
/// Most rows of ranks that differ, besides the least and the most.
constexpr std::size_t kMostDiffering = 4;

using Texts = std::vector<std::string>;

Texts texts_of(const std::vector<RankCell>& cells) {
  Texts texts;
  for (const RankCell& cell : cells) texts.push_back(cell.number + cell.mark);
  return texts;
}

/// Adds a row.
void row(Table& table, std::string_view label, const Texts& texts) {
  std::vector<Cell> cells = {label};
  cells.insert(cells.end(), texts.begin(), texts.end());
  table.row(std::move(cells));
}

/// Returns ranks grouped by what their rows read, in the order of each group's first rank.
std::vector<std::pair<Texts, std::vector<int>>> groups_of(const std::vector<std::vector<RankCell>>& ranks) {
  std::vector<std::pair<Texts, std::vector<int>>> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Texts texts = texts_of(ranks[rank]);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == texts; });
    if (same != groups.end()) same->second.push_back(static_cast<int>(rank));
    else groups.push_back({texts, {static_cast<int>(rank)}});
  }
  return groups;
}

/// Returns the least and the most of every column. They carry a mark only if all ranks have the same.
std::pair<Texts, Texts> extremes(const std::vector<std::vector<RankCell>>& ranks) {
  Texts least;
  Texts most;
  for (std::size_t column = 0; column < ranks.front().size(); ++column) {
    std::vector<const RankCell*> cells;
    for (const std::vector<RankCell>& row : ranks) cells.push_back(&row[column]);
    const auto [low, high] =
        std::minmax_element(cells.begin(), cells.end(), [](const RankCell* a, const RankCell* b) { return a->value < b->value; });
    const bool alike =
        std::all_of(cells.begin(), cells.end(), [&](const RankCell* cell) { return cell->mark == cells[0]->mark; });
    const std::string mark = alike ? cells[0]->mark : "";
    least.push_back((*low)->number + mark);
    most.push_back((*high)->number + mark);
  }
  return {least, most};
}

void rows(Table& table, const std::vector<std::vector<RankCell>>& ranks) {
  const auto groups = groups_of(ranks);
  if (groups.size() <= kMostRows) {
    for (const auto& [texts, members] : groups) row(table, ranges_text(members, kLabel), texts);
    return;
  }
  const auto [least, most] = extremes(ranks);
  row(table, "least", least);
  row(table, "most", most);
  std::size_t differing = 0;
  for (std::size_t rank = 0; rank < ranks.size() && differing < kMostDiffering; ++rank) {
    if (!std::ranges::any_of(ranks[rank], &RankCell::differs)) continue;
    row(table, std::to_string(rank), texts_of(ranks[rank]));
    ++differing;
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

std::vector<std::string> RankTable::lines(std::size_t columns) const {
  std::vector<Column> described = {{"rank", Align::left}};
  described.insert(described.end(), heads.begin(), heads.end());
  Table table(described);
  rows(table, ranks);
  if (!sum.empty()) row(table, "sum", texts_of(sum));
  return table.lines(columns);
}

}  // namespace tsprun::detail::launcher
