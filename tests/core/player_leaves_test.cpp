// Virtual time behind leaf and spine switches, against closed formulas.
#include "tests/core/player_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::test::player_leaves_test {
namespace {

using namespace player_support;

// --- leaf and spine ----------------------------------------------------------------------------------------------------------

/// Nodes with a rank and a NIC on each rail, behind leaves whose links to the spine are never in the way.
PlayOptions behind_leaves(int nodes, int rails, int nodes_per_leaf) {
  PlayOptions how = options(nodes * rails, false);
  how.fabric.ranks_per_node = how.fabric.nics_per_node = rails;
  how.fabric.nodes_per_leaf = nodes_per_leaf;
  how.fabric.leaf_bytes_per_s = how.fabric.spine_bytes_per_s = std::numeric_limits<double>::infinity();
  how.fabric.spine_latency = 2 * kLatency;
  return how;
}

constexpr std::size_t kMessage4 = std::size_t{4} << 20;

/// Records that each rank sends 4 MiB to the one `away` ranks further, and receives as much.
std::vector<Program> shifted(int ranks, int per_node, int away) {
  return record(ranks, ranks, per_node, kMessage4 / 2, "", [=](Context& context, Buffer all) {
    const int to = (context.rank() + away) % ranks;
    const int from = (context.rank() + ranks - away) % ranks;
    context.world().send_recv(all.slice(0, all.count / 2), to, all.slice(all.count / 2, all.count / 2), from);
  });
}

double seconds_of(const PlayedRun& run, std::string_view kind) {
  double most = 0;
  for (const sim::Link& link : run.links) most = link.kind == kind ? std::max(most, link.busy_seconds) : most;
  return most;
}

TEST(PlayerBehindLeaves, ASpineThatBindsTakesAllBytesOverItsSpeed) {
  PlayOptions how = behind_leaves(8, 1, 2);
  how.fabric.spine_bytes_per_s = kRate / 2;
  const PlayedRun run = play(shifted(8, 1, 4), how);
  const double spine = 8 * kMessage4 / how.fabric.spine_bytes_per_s;
  EXPECT_NEAR(run.seconds, spine + 3 * kLatency, 1e-9);
  EXPECT_NEAR(seconds_of(run, "spine"), spine, 1e-12);
}

TEST(PlayerBehindLeaves, ALeafThatBindsTakesTheBytesOfItsNodesOverItsSpeed) {
  PlayOptions how = behind_leaves(8, 1, 4);
  how.fabric.leaf_bytes_per_s = kRate / 2;
  const PlayedRun run = play(shifted(8, 1, 4), how);
  EXPECT_NEAR(run.seconds, 4 * kMessage4 / how.fabric.leaf_bytes_per_s + 3 * kLatency, 1e-9);
  // One step further only one node of a leaf sends to another leaf.
  EXPECT_NEAR(play(shifted(8, 1, 1), how).seconds, kMessage4 / how.fabric.leaf_bytes_per_s + 3 * kLatency, 1e-9);
}

TEST(PlayerBehindLeaves, WithinALeafAndOnWideLeavesOnlyNicsLimit) {
  const PlayedRun within = play(shifted(2, 1, 1), behind_leaves(2, 1, 2));
  EXPECT_NEAR(within.seconds, kMessage4 / kRate + kLatency, 1e-9);
  EXPECT_EQ(seconds_of(within, "leaf to spine"), 0);
  EXPECT_NEAR(play(shifted(2, 1, 1), behind_leaves(2, 1, 1)).seconds, kMessage4 / kRate + 3 * kLatency, 1e-9);
}

TEST(PlayerBehindLeaves, OfALeafForEachRailBytesThatChangeRailsCrossTheSpine) {
  PlayOptions how = behind_leaves(2, 2, 2);
  how.fabric.leaf_bytes_per_s = kRate / 4;
  for (const bool per_rail : {false, true}) {
    how.fabric.leaf_per_rail = per_rail;
    EXPECT_NEAR(play(shifted(4, 2, 2), how).seconds, kMessage4 / kRate + kLatency, 1e-9);
  }
  // Of ranks 0 to 3, 1 and 3 send to another node, and from the leaf of rail 1 to that of rail 0.
  EXPECT_NEAR(play(shifted(4, 2, 1), how).seconds, 2 * kMessage4 / how.fabric.leaf_bytes_per_s + 3 * kLatency, 1e-9);
  how.fabric.leaf_per_rail = false;
  EXPECT_NEAR(play(shifted(4, 2, 1), how).seconds, kMessage4 / kRate + kLatency, 1e-9);
}

TEST(PlayerBehindLeaves, ASpineThatUnitsShareCarriesTheBytesOfAll) {
  // Eight nodes, of which two, a leaf, stand for all.
  PlayOptions how = behind_leaves(8, 1, 2);
  how.fabric.spine_bytes_per_s = kRate / 2;
  const auto programs = shifted(8, 1, 4);
  const PlayedRun whole = play(programs, how);
  how.fabric.ranks = 2;
  how.fabric.units = 4;
  const PlayedRun folded = play(std::span(programs).first(2), how);
  EXPECT_NEAR(folded.seconds, whole.seconds, 1e-9);
  EXPECT_EQ(folded.links.back().kind, "spine");
  EXPECT_EQ(folded.links.back().bytes, whole.links.back().bytes);
}

TEST(PlayerBehindLeaves, QuantaShareTheSpineByteByByte) {
  // Three messages of one quantum come at once, and of the first only half as many bytes: it leaves when each has had as many,
  // the others when all bytes are through.
  PlayOptions how = behind_leaves(6, 1, 1);
  how.fabric.spine_bytes_per_s = kRate / 4;
  constexpr std::size_t kElements = std::size_t{1} << 15;
  const auto programs = record(6, 6, 1, kElements, "", [](Context& context, Buffer all) {
    const Buffer own = context.rank() % 3 == 0 ? all.slice(0, kElements / 2) : all;
    if (context.rank() < 3) context.world().send(own, context.rank() + 3);
    else context.world().recv(own, context.rank() - 3);
  });
  const PlayedRun run = play(programs, how);
  constexpr double kHalf = 2.0 * kElements;
  EXPECT_NEAR(run.ranks[3].seconds, 3 * kHalf / how.fabric.spine_bytes_per_s + 3 * kLatency, 1e-9);
  for (const int rank : {4, 5})
    EXPECT_NEAR(run.ranks[static_cast<std::size_t>(rank)].seconds, 5 * kHalf / how.fabric.spine_bytes_per_s + 3 * kLatency, 1e-9);
}

TEST(SharedLink, GivesAllWhoAreOnItEquallyMuch) {
  sim::SharedLink link(2);
  link.come(0, 7, 10);
  EXPECT_EQ(link.next(), 5);
  link.come(1, 8, 2);  // 7 has 8 to go, and both get one byte a second
  EXPECT_EQ(link.next(), 3);
  EXPECT_EQ(link.leave(), 8U);
  EXPECT_EQ(link.next(), 6);
  EXPECT_EQ(link.leave(), 7U);
  EXPECT_TRUE(link.empty());
  link.come(100, 9, 4);
  link.come(100, 3, 4);
  EXPECT_EQ(link.next(), 104);
  EXPECT_EQ(link.leave(), 9U);  // of equals the first
  EXPECT_EQ(link.next(), 104);
}

}  // namespace
}  // namespace tsprun::detail::test::player_leaves_test
