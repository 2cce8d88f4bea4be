// How ranks that only have a number and a store in common (tsprun/key_value.h) find out who shares a machine with whom:
//
//   place/R   rank R's machine: ranks of one machine write the same text
//   plan      rank 0's answer to all: the number of nodes, and how their ranks meet; or why they can't
//
// Ranks must be numbered node by node, in blocks as placement.h has them.
#pragma once

#include "transport/bootstrap/job_description.h"
#include "transport/bootstrap/secret.h"
#include "tsprun/key_value.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bootstrap {

/// Answer of rank 0 to all ranks.
struct Plan {
  int nodes = 1;
  bool one_machine = false;           ///< all nodes are on one machine, as TSP_NODE can have it
  std::string job;                    ///< random; the first part of the names of sockets at which the ranks of a node meet
  Secret secret{};                    ///< the job's; empty if there is one node
  Demand inter = Demand::automatic;   ///< the transport that rank 0 demands between nodes
  std::vector<std::string> stores{};  ///< addresses of the job's own store, the preferred one first; none if there is one node

  /// Returns the plan as the value of a key.
  std::string text() const;
  /// Reads what text() wrote; throws Error(corrupt) if the text is none.
  static Plan parse(std::string_view text);
};

/// Returns a text that the ranks of one machine have in common and those of others don't. Ranks that can't share memory because
/// they have unlike users, or namespaces of networks or processes, have unlike texts, too. `node`: TSP_NODE, by which one machine
/// stands for several nodes; empty: not set.
std::string machine_name(std::string_view node);

/// Answers for all ranks, called by all. Rank 0 waits for all others, then calls `open` with a plan that has the number of nodes,
/// which adds where they meet. Throws Error(stalled) naming the ranks that don't come within the timeout, and Error(refused) if
/// ranks aren't numbered node by node; on all ranks the same, which also have what `open` throws.
Plan call_roll(int rank, int size, const std::string& machine, KeyValue& store, std::uint64_t timeout_ns,
               const std::function<void(Plan&)>& open);

}  // namespace tsprun::detail::bootstrap
