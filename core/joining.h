// How a process that no tsprun started becomes a rank: it finds the ranks of its node and, if there are others, links the nodes.
#pragma once

#include "core/board/courier.h"
#include "transport/bootstrap/meeting.h"
#include "transport/environment.h"
#include "tsprun/key_value.h"

#include <memory>

namespace tsprun::detail {

/// A rank's place, its node's memory, and the thread that carries news between nodes.
struct Joined {
  bootstrap::Meeting meeting;
  int local_rank;
  std::unique_ptr<Courier> courier;  ///< of a node's first rank; null: of any other, or if there is one node
};

/// Meets all ranks of the job; all of them call it. Of the variables it reads TSP_NODE, TSP_INTER, TSP_RDMA and TSP_TIMEOUT.
/// Throws Error as Context::join().
Joined join_by(KeyValue& store, int rank, int size, const Environment& environment);

}  // namespace tsprun::detail
