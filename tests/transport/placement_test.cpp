// Ranks cut into nodes.

#include "transport/bootstrap/placement.h"

#include <gtest/gtest.h>

namespace tsprun::detail::bootstrap::placement_test {
namespace {

TEST(Placement, BlocksFollowEachOtherAndTheFirstAreLonger) {
  for (int ranks = 1; ranks <= 20; ++ranks) {
    for (int nodes = 1; nodes <= ranks; ++nodes) {
      int next = 0;
      for (int node = 0; node < nodes; ++node) {
        const RankBlock block = block_of(ranks, nodes, node);
        EXPECT_EQ(block.first, next);
        EXPECT_EQ(block.count, ranks / nodes + (node < ranks % nodes ? 1 : 0));
        for (int rank = block.first; rank < block.first + block.count; ++rank) EXPECT_EQ(node_of(ranks, nodes, rank), node);
        next += block.count;
      }
      EXPECT_EQ(next, ranks);
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::placement_test
