// Nodes of a replica that stand for one another in virtual time: the same step as with all ranks played, and which programs count
// as the same.
#include "layers/theory/played_ranks.h"

#include "core/virtual/folding.h"
#include "core/virtual/player.h"
#include "layers/theory/kernel_price.h"
#include "layers/theory/peaks.h"
#include "layers/theory/simulate.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::played_ranks_test {
namespace {

constexpr int kGpus = 4;  // of a node

/// A model of so many layers that take a GPU as long as those of 70 billion parameters.
theory::MeshSetting setting(const std::string& layout, std::size_t layers) {
  ModelCase of{
      .config = small_config(8192, layers, 64, 64, 128, 28672, 131072), .batch = 16, .sequence = 8192, .dtype = DType::bf16};
  return {.setting = of.setting(), .layout = Layout::parse(layout)};
}

theory::Machine machine() {
  theory::Machine found = theory::find_machine("h100");
  found.gpus_per_node = found.nics_per_node = kGpus;
  return found;
}

TEST(Turns, AreThoseOfEachAxis) {
  const sim::Turns turns{.unit = 4, .along = {3, 2, 5}};
  ASSERT_EQ(turns.units(), 30);
  const auto places = [](int unit) { return std::vector<int>{unit / 10, unit / 5 % 2, unit % 5}; };
  for (int unit = 0; unit < 30; ++unit) {
    for (int other = 0; other < 30; ++other) {
      const int turned = turns.turned(4 * other + 3, unit);
      EXPECT_EQ(turned % 4, 3);
      for (std::size_t axis = 0; axis < 3; ++axis)
        EXPECT_EQ(places(turned / 4)[axis], (places(unit)[axis] + places(other)[axis]) % turns.along[axis]);
    }
    EXPECT_EQ(turns.turned(4 * turns.opposite(unit), unit), 0);
  }
}

/// Returns the program of a step on a rank.
Program recorded(const theory::MeshSetting& of, int rank) {
  theory::PeakOptions how;
  how.training = true;
  for (int other = 0; other < of.layout.ranks(); ++other)
    how.like.peers.push_back({.node = other / kGpus, .views = other / kGpus == rank / kGpus});
  return theory::record_step(of, rank, how, 2, false).program;
}

/// Plays programs on ranks of which these are the first, in so many units along each axis.
PlayedRun played(std::span<const Program> programs, const std::vector<int>& units, const theory::Machine& on) {
  const int ranks = static_cast<int>(programs.size());
  const int world = ranks * std::accumulate(units.begin(), units.end(), 1, std::multiplies<>());
  return play(programs, {.fabric = {.ranks = ranks,
                                    .ranks_per_node = kGpus,
                                    .within_bytes_per_s = on.within_bytes_per_s,
                                    .within_latency = on.within_latency,
                                    .nics_per_node = kGpus,
                                    .nic_bytes_per_s = on.nic_bytes_per_s,
                                    .nic_latency = on.nic_latency,
                                    .units = world / ranks},
                         .ranks = world,
                         .units = units,
                         .price = [&](int, const KernelCost& cost) { return theory::kernel_seconds(cost, on, false); }});
}

TEST(PlayedRanks, OfANodeStandForAllWhereNodesDoTheSame) {
  for (const auto& [layout, units] :
       {std::pair("zero3=16", std::vector{4}), std::pair("tp=16", std::vector{4}), std::pair("dp=2,zero3=8", std::vector{2, 2}),
        std::pair("dp=2,tp=4,sp=2", std::vector{2, 2}), std::pair("tp=4,sp=4", std::vector{4})}) {
    SCOPED_TRACE(layout);
    const theory::MeshSetting of = setting(layout, 2);
    theory::FewestRanks fewest(of.layout, machine(),
                               [](const KernelCost& cost) { return theory::kernel_seconds(cost, machine(), false); });
    std::vector<Program> programs;
    for (int rank = 0; rank < 16; ++rank) {
      programs.push_back(recorded(of, rank));
      if (rank < theory::unit_of(of.layout, kGpus)) fewest.add(programs.back());
    }
    ASSERT_TRUE(fewest.turns());
    EXPECT_EQ(fewest.turns()->unit, kGpus);
    EXPECT_EQ(fewest.turns()->along, units);
    const PlayedRun whole = played(programs, {1}, machine());
    const PlayedRun folded = played(std::span(programs).first(kGpus), units, machine());
    EXPECT_NEAR(folded.seconds, whole.seconds, 1e-3 * whole.seconds);
    EXPECT_NEAR(static_cast<double>(4 * folded.messages), static_cast<double>(whole.messages),
                1e-2 * static_cast<double>(whole.messages));
    for (std::size_t rank = 0; rank < folded.ranks.size(); ++rank)
      EXPECT_NEAR(folded.ranks[rank].exposed, whole.ranks[rank].exposed, 2e-3 * whole.seconds) << rank;
  }
}

TEST(PlayedRanks, AreMoreWhereEachIsARootInItsTurnOrWorksMore) {
  const theory::MeshSetting of = setting("tsp=8", 2);
  const auto price = [](const KernelCost& cost) { return theory::kernel_seconds(cost, machine(), false); };
  theory::FewestRanks rooted(of.layout, machine(), price);
  for (int rank = 0; rank < 8; ++rank) rooted.add(recorded(of, rank));
  EXPECT_FALSE(rooted.turns());

  const theory::MeshSetting even = setting("tp=8", 2);
  theory::FewestRanks slow(even.layout, machine(), price);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_TRUE(slow.turns()) << rank;
    slow.add(recorded(even, rank));
  }
  EXPECT_TRUE(slow.turns());
  theory::FewestRanks late(even.layout, machine(), price);
  for (int rank = 0; rank < 8; ++rank) {
    Program program = recorded(even, rank);
    if (rank == 7) program.items.push_back(*std::ranges::find(program.items, ItemKind::kernel, &ProgramItem::kind));
    for (std::size_t i = 0; rank == 7 && i < 1000; ++i) program.items.push_back(program.items.back());
    late.add(std::move(program));
  }
  EXPECT_FALSE(late.turns());
}

TEST(PlayedRanks, OfManyLayersAreThoseOfANode) {
  const theory::Simulated step = theory::simulate(setting("dp=2,zero3=8", 64), machine(), {});
  EXPECT_EQ(step.played, kGpus);
  EXPECT_EQ(step.layers, 6U);
}

TEST(PlayedRanks, DoTheSameWithTheSameOperationsBetweenRanksAsFarAway) {
  const theory::MeshSetting of = setting("sp=8", 2);
  const sim::Turns turns{.unit = kGpus, .along = {2}};
  const auto price = [](const KernelCost& cost) { return 1e-6 + cost.flops * 1e-12; };
  const Program first = recorded(of, 1);
  const Program other = recorded(of, 5);
  const auto same = [&](const Program& of_other) { return does_the_same(first, of_other, 1, turns, price); };
  EXPECT_TRUE(same(other));

  const auto changed = [&](auto&& change) {
    Program copy = other;
    change(copy);
    return copy;
  };
  const auto find = [](Program& in, ItemKind kind) { return std::ranges::find(in.items, kind, &ProgramItem::kind); };
  EXPECT_FALSE(same(changed([&](Program& in) { in.items.erase(find(in, ItemKind::wait)); })));
  EXPECT_FALSE(same(changed([&](Program& in) { find(in, ItemKind::post)->stream ^= 1; })));
  EXPECT_FALSE(same(changed([&](Program& in) {
    in.items.pop_back();
    in.calls.front().op = Op::barrier;
  })));
  EXPECT_FALSE(same(changed([&](Program& in) { in.calls.front().bytes += 100'000'000; })));
  EXPECT_TRUE(same(changed([&](Program& in) { in.calls.front().bytes += 2; })));
  EXPECT_FALSE(same(changed([&](Program& in) { std::swap(in.groups.begin()->second[0], in.groups.begin()->second[1]); })));
  EXPECT_FALSE(same(changed([&](Program& in) {
    for (KernelCost& cost : in.costs) cost.flops *= 1.02;
  })));
  EXPECT_TRUE(same(changed([&](Program& in) {
    for (KernelCost& cost : in.costs) cost.flops *= 1.001;
  })));
}

TEST(PlayedRanks, AreACircleWhereTurningKeepsTheirOrder) {
  const sim::Turns turns{.unit = 2, .along = {2, 3}};
  EXPECT_TRUE(is_circle({0, 2, 4}, turns));  // along the inner axis
  EXPECT_TRUE(is_circle({0, 1, 2, 3, 4, 5}, turns));
  EXPECT_TRUE(is_circle({0, 6}, turns));
  EXPECT_TRUE(is_circle({0, 1}, turns));
  EXPECT_FALSE(is_circle({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, turns));  // of both: 4 5 is followed by 6 7, turned by 0 1
  EXPECT_TRUE(is_circle({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {.unit = 2, .along = {6}}));
}

}  // namespace
}  // namespace tsprun::detail::test::played_ranks_test
