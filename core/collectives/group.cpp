// Lays a group's members out as nodes and rails.
#include "core/collectives/group.h"

#include <fmt/format.h>

#include <unordered_map>

namespace tsprun::detail {

namespace {

/// Returns a group of some members of another. It has the same id, because its operations are parts of operations of the whole
/// group.
Group part_of(const Group& whole, const std::vector<int>& group_ranks) {
  Group part;
  part.engine = whole.engine;
  part.heap = whole.heap;
  part.staging = whole.staging;
  part.id = whole.id;
  part.channel = whole.channel;
  part.plain_limit = whole.plain_limit;
  for (const int r : group_ranks) {
    if (r == whole.rank) part.rank = part.size();
    else part.views = part.views && whole.member(r).can_view;
    part.members.push_back(whole.member(r));
    part.ranks.push_back(whole.member(r).world);
  }
  return part;
}

}  // namespace

void lay_out(Group& group) {
  std::vector<int> nodes;              // in the order of their first members
  std::vector<std::vector<int>> rows;  // group ranks
  std::unordered_map<int, std::size_t> row_of;
  for (int r = 0; r < group.size(); ++r) {
    const int node = group.member(r).node;
    const auto [row, is_new] = row_of.emplace(node, rows.size());
    if (is_new) {
      nodes.push_back(node);
      rows.emplace_back();
    }
    rows[row->second].push_back(r);
  }
  if (rows.size() == 1) {
    group.no_grid = "all ranks of the group sit on one node";
    return;
  }
  for (std::size_t row = 1; row < rows.size(); ++row) {
    if (rows[row].size() == rows[0].size()) continue;
    group.no_grid = fmt::format("node {} holds {} of the group's ranks, node {} holds {}: rails need as many on each", nodes[0],
                                rows[0].size(), nodes[row], rows[row].size());
    return;
  }
  if (rows[0].size() == 1) {
    group.no_grid = "each node holds one rank of the group";
    return;
  }
  auto grid = std::make_shared<Grid>();
  grid->nodes = static_cast<int>(rows.size());
  grid->rails = static_cast<int>(rows[0].size());
  grid->place_of.resize(group.members.size());
  std::vector<int> rail;
  for (const std::vector<int>& row : rows) {
    for (const int r : row) {
      const auto place = static_cast<int>(grid->members.size());
      grid->place_of[static_cast<std::size_t>(r)] = place;
      grid->members.push_back(r);
    }
  }
  grid->node = grid->row_of(group.rank);
  grid->rail = grid->column_of(group.rank);
  for (int row = 0; row < grid->nodes; ++row) rail.push_back(grid->at(row, grid->rail));
  grid->within = part_of(group, rows[static_cast<std::size_t>(grid->node)]);
  grid->across = part_of(group, rail);
  grid->views = grid->within.views;
  group.grid = std::move(grid);
}

}  // namespace tsprun::detail
