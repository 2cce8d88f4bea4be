// Which rank sits on which node: ranks are cut into as many blocks as there are nodes, the first n mod K of them one longer.
#pragma once

#include <algorithm>

namespace tsprun::bootstrap {

struct RankBlock {
  int first = 0;
  int count = 0;
};

constexpr RankBlock block_of(int ranks, int nodes, int node) {
  const int longer = ranks % nodes;
  return {node * (ranks / nodes) + std::min(node, longer), ranks / nodes + (node < longer ? 1 : 0)};
}

constexpr int node_of(int ranks, int nodes, int rank) {
  const int longer = ranks % nodes;
  const int in_longer = longer * (ranks / nodes + 1);
  return rank < in_longer ? rank / (ranks / nodes + 1) : longer + (rank - in_longer) / (ranks / nodes);
}

}  // namespace tsprun::bootstrap
