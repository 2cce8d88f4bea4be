// Brings the ranks of one node together if tsprun didn't start them: local rank 0 makes the node's memory and passes its
// descriptor to the others over an abstract Unix socket (unix(7)), named after uid and job id. So nothing is left behind in any
// file system.
//
// Only processes of the same uid are let in (SO_PEERCRED); every message has a fixed size, which is checked; each rank number
// may come once; every step ends at the deadline.
#pragma once

#include "transport/bootstrap/identity.h"
#include "transport/bootstrap/job_description.h"
#include "transport/shm/node_memory.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace tsprun::detail::bootstrap {

/// Result of a meeting.
struct Meeting {
  shm::NodeMemory memory;
  std::vector<int> pids;  ///< by local rank, as the kernel reports them
};

/// Fills in what a node of a job on several nodes has to know beside its own ranks: its number, the job's store and secret.
/// Called by local rank 0 when the node's ranks have come; may wait for the timeout. What it throws, all ranks of the node throw.
using OtherNodes = std::function<void(JobDescription& job, Secret& secret)>;

/// Meets the other ranks of this node; all of them call it. Throws Error(stalled) at the deadline, naming the local ranks that
/// didn't come; Error(exited) if a rank ends meanwhile; Error(refused) if the job has ranks on other nodes but `others` is
/// empty, a second job uses the same name, a rank comes twice or sizes disagree; Error(out_of_memory) as
/// NodeMemory::create_posix.
Meeting meet(const Identity& identity, std::uint64_t timeout_ns, const OtherNodes& others = {});

}  // namespace tsprun::detail::bootstrap
