// What all operations of a communicator have in common: the members, how this rank reaches them, and the rank's own parts.
#pragma once

#include "core/memory/heap.h"
#include "core/streams/engine.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tsprun {

class Staging;
struct Grid;

struct Group {
  /// One member, as this rank reaches it.
  struct Member {
    int world = -1;                  ///< its rank in the world
    Transport* transport = nullptr;  ///< null for this rank itself
    int peer = -1;                   ///< its number in that transport
    bool can_view = false;           ///< its memory can be read in place
    int node = 0;                    ///< where it sits
  };

  Engine* engine = nullptr;
  Heap* heap = nullptr;
  Staging* staging = nullptr;
  std::vector<Member> members;       ///< in group order
  std::vector<int> ranks;            ///< the same, as ranks of the world
  int rank = 0;                      ///< this rank's place
  std::uint64_t id = 0;              ///< the same on all members, different for every communicator
  bool views = true;                 ///< this rank can view all others; transports see to it that the others say the same
  std::size_t plain_limit = 0;       ///< payloads up to here may be sent from any memory
  std::shared_ptr<const Grid> grid;  ///< null where hierarchical algorithms can't run: see no_grid
  std::string no_grid;               ///< why there is no grid

  int size() const { return static_cast<int>(members.size()); }
  const Member& member(int group_rank) const { return members[static_cast<std::size_t>(group_rank)]; }
};

/// A group that spans several nodes with equally many members on each, as a table: a row is a node, a column a *rail*, the i-th
/// member of every node. Members of a node are in group order, nodes in the order of their first members.
struct Grid {
  int nodes = 0;
  int rails = 0;             ///< members of a node
  int node = 0;              ///< this rank's row
  int rail = 0;              ///< and column
  bool views = true;         ///< members of a node can view each other
  std::vector<int> members;  ///< group ranks, row by row
  Group within;              ///< this rank's node as a group of its own, in the order of rails
  Group across;              ///< this rank's rail, in the order of nodes

  int at(int row, int column) const {
    const int index = row * rails + column;
    return members[static_cast<std::size_t>(index)];
  }
  /// Row and column of a member.
  int row_of(int group_rank) const { return place_of[static_cast<std::size_t>(group_rank)] / rails; }
  int column_of(int group_rank) const { return place_of[static_cast<std::size_t>(group_rank)] % rails; }
  std::vector<int> place_of;  ///< index in `members` of each group rank
};

/// Lays the group's members out as a grid, or says in no_grid why that can't be.
void lay_out(Group& group);

}  // namespace tsprun
