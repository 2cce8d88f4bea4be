// Places ranks on nodes: the ranks are cut into as many consecutive blocks as there are nodes; with n ranks on K nodes the first
// n mod K blocks have one rank more.
#pragma once

#include <algorithm>

namespace tsprun::detail::bootstrap {

/// The consecutive ranks of one node.
struct RankBlock {
  int first = 0;
  int count = 0;
};

/// Returns the ranks that run on `node`.
constexpr RankBlock block_of(int ranks, int nodes, int node) {
  const int longer = ranks % nodes;
  return {node * (ranks / nodes) + std::min(node, longer), ranks / nodes + (node < longer ? 1 : 0)};
}

/// Returns the node on which `rank` runs.
constexpr int node_of(int ranks, int nodes, int rank) {
  const int longer = ranks % nodes;
  const int in_longer = longer * (ranks / nodes + 1);
  return rank < in_longer ? rank / (ranks / nodes + 1) : longer + (rank - in_longer) / (ranks / nodes);
}

}  // namespace tsprun::detail::bootstrap
