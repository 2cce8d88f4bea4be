// State shared by all operations of a communicator: the members of the group, how this rank reaches them, and this rank's engine,
// heap and staging memory.
#pragma once

#include "core/collectives/choice.h"
#include "core/memory/heap.h"
#include "core/streams/engine.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tsprun::detail {

class OwnChannel;
class Staging;
struct Grid;

/// The members of a communicator, as one of them sees it. Pointers are borrowed from the context.
struct Group {
  /// A member and the route to it.
  struct Member {
    int world = -1;                  ///< its rank in the world
    Transport* transport = nullptr;  ///< null for this rank itself, and on phantoms; or the way of a channel
    int peer = -1;                   ///< its number in that transport; of no meaning to a channel
    bool can_view = false;           ///< its memory can be read in place
    int node = 0;                    ///< number of the node it is on
  };

  Engine* engine = nullptr;
  Heap* heap = nullptr;
  Staging* staging = nullptr;
  std::vector<Member> members;       ///< in group order
  std::vector<int> ranks;            ///< world ranks of the members, in group order
  int rank = 0;                      ///< this rank's place in the group
  std::uint64_t id = 0;              ///< the group's number, see Engine::new_group()
  OwnChannel* channel = nullptr;     ///< by which members are reached; null: by lanes
  bool views = true;                 ///< the memory of all other members can be read in place; the same on all members
  std::size_t plain_limit = 0;       ///< largest payload, in bytes, that may be sent to any member from any memory
  std::shared_ptr<const Grid> grid;  ///< null where hierarchical algorithms can't run: see no_grid
  std::string no_grid;               ///< why there is no grid

  int size() const { return static_cast<int>(members.size()); }
  /// Returns the properties on which the choice of algorithms depends. The text in it is borrowed.
  GroupShape shape() const;
  const Member& member(int group_rank) const { return members[static_cast<std::size_t>(group_rank)]; }
};

/// The layout of a group that spans several nodes with equally many members, at least two, on each. It is a table: a row is a
/// node, a column is a *rail*, the i-th member of every node. Members of a node are in group order, nodes in the order of their
/// first members.
struct Grid {
  int nodes = 0;             ///< number of rows
  int rails = 0;             ///< number of columns: members of a node
  int node = 0;              ///< this rank's row
  int rail = 0;              ///< this rank's column
  bool views = true;         ///< members of this rank's node can read each other's memory in place
  std::vector<int> members;  ///< group ranks, row by row
  Group within;              ///< this rank's node as a group of its own, in the order of rails
  Group across;              ///< this rank's rail as a group of its own, in the order of nodes

  /// Returns the group rank at a row and column.
  int at(int row, int column) const {
    const int index = row * rails + column;
    return members[static_cast<std::size_t>(index)];
  }
  /// Returns the row (node) of a member.
  int row_of(int group_rank) const { return place_of[static_cast<std::size_t>(group_rank)] / rails; }
  /// Returns the column (rail) of a member.
  int column_of(int group_rank) const { return place_of[static_cast<std::size_t>(group_rank)] % rails; }
  /// Returns the row that comes `hops` after `row`, cyclically; `hops` may be negative, down to −nodes.
  int node_after(int row, int hops) const { return (row + hops + nodes) % nodes; }
  std::vector<int> place_of;  ///< index in `members` of each group rank
};

inline GroupShape Group::shape() const {
  return {.ranks = size(), .views = views, .grid = grid != nullptr, .grid_views = grid && grid->views, .no_grid = no_grid};
}

/// Lays the group's members out as a grid and sets `grid`; if that is impossible, sets `no_grid` to the reason.
void lay_out(Group& group);

}  // namespace tsprun::detail
