// How ranks of one node that no tsprun started find each other: local rank 0 makes the node's memory and hands its descriptor to
// the others over an abstract Unix socket, named after uid and job id, so that nothing stays behind in any file system.
//
// Only processes of the same uid are let in (SO_PEERCRED); every message has a fixed size that is checked; one rank number may
// come once; every step ends at the deadline.
#pragma once

#include "transport/bootstrap/identity.h"
#include "transport/shm/node_memory.h"

#include <cstdint>
#include <vector>

namespace tsprun::bootstrap {

/// What the ranks of a node have after they met.
struct Meeting {
  shm::NodeMemory memory;
  std::vector<int> pids;  ///< by local rank, as the kernel reports them
};

/// All local ranks call it. Throws Error(stalled) at the deadline, naming the local ranks that didn't come; Error(refused) if a
/// second job uses the same name, a rank comes twice or sizes disagree; Error(out_of_memory) as NodeMemory::create_posix.
Meeting meet(const Identity& identity, std::uint64_t timeout_ns);

}  // namespace tsprun::bootstrap
