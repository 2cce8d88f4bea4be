// What all operations of a communicator have in common: the members, how this rank reaches them, and the rank's own parts.
#pragma once

#include "core/memory/heap.h"
#include "core/streams/engine.h"

#include <cstdint>
#include <vector>

namespace tsp {

class Staging;

struct Group {
  /// One member, as this rank reaches it.
  struct Member {
    int world = -1;                  ///< its rank in the world
    Transport* transport = nullptr;  ///< null for this rank itself
    int peer = -1;                   ///< its number in that transport
    bool can_view = false;           ///< its memory can be read in place
  };

  Engine* engine = nullptr;
  Heap* heap = nullptr;
  Staging* staging = nullptr;
  std::vector<Member> members;  ///< in group order
  std::vector<int> ranks;       ///< the same, as ranks of the world
  int rank = 0;                 ///< this rank's place
  std::uint64_t id = 0;         ///< the same on all members, different for every communicator
  bool views = true;            ///< this rank can view all others; transports see to it that the others say the same
  std::size_t plain_limit = 0;  ///< payloads up to here may be sent from any memory

  int size() const { return static_cast<int>(members.size()); }
  const Member& member(int group_rank) const { return members[static_cast<std::size_t>(group_rank)]; }
};

}  // namespace tsp
