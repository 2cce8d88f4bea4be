// Nodes of a replica that stand for one another in virtual time: the same step as with all ranks played, and which programs count
// as the same.
#include "layers/theory/played_ranks.h"

#include "core/collectives/registry.h"
#include "core/virtual/folding.h"
#include "core/virtual/player.h"
#include "layers/theory/kernel_price.h"
#include "layers/theory/peaks.h"
#include "layers/theory/remarks.h"
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

TEST(UnitGrid, AreThoseOfEachAxis) {
  const sim::UnitGrid grid{.unit = 4, .along = {3, 2, 5}};
  ASSERT_EQ(grid.units(), 30);
  const auto places = [](int unit) { return std::vector<int>{unit / 10, unit / 5 % 2, unit % 5}; };
  for (int unit = 0; unit < 30; ++unit) {
    for (int other = 0; other < 30; ++other) {
      const int turned = grid.shifted(4 * other + 3, unit);
      EXPECT_EQ(turned % 4, 3);
      for (std::size_t axis = 0; axis < 3; ++axis)
        EXPECT_EQ(places(turned / 4)[axis], (places(unit)[axis] + places(other)[axis]) % grid.along[axis]);
    }
    EXPECT_EQ(grid.shifted(4 * grid.opposite(unit), unit), 0);
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
                         .price = [&](int, const KernelCost& cost) { return theory::kernel_seconds(cost, on); }});
}

TEST(PlayedRanks, OfANodeStandForAllWhereNodesDoTheSame) {
  for (const auto& [layout, units] :
       {std::pair("zero3=16", std::vector{4}), std::pair("tp=16", std::vector{4}), std::pair("dp=2,zero3=8", std::vector{2, 2}),
        std::pair("dp=2,tp=4,sp=2", std::vector{2, 2}), std::pair("tp=4,sp=4", std::vector{4})}) {
    SCOPED_TRACE(layout);
    const theory::MeshSetting of = setting(layout, 2);
    const auto price = [](const KernelCost& cost) { return theory::kernel_seconds(cost, machine()); };
    theory::FewestRanks fewest(of.layout, machine(), price);
    std::vector<Program> programs;
    for (int rank = 0; rank < 16; ++rank) {
      programs.push_back(recorded(of, rank));
      if (rank < theory::unit_of(of.layout, kGpus)) fewest.add(programs.back(), theory::kernels_seconds(programs.back(), price));
    }
    ASSERT_TRUE(fewest.grid());
    EXPECT_EQ(fewest.grid()->unit, kGpus);
    EXPECT_EQ(fewest.grid()->along, units);
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
  const auto price = [](const KernelCost& cost) { return 1e-6 + cost.flops * 1e-12; };
  theory::FewestRanks rooted(of.layout, machine(), price);
  for (int rank = 0; rank < 8; ++rank) rooted.add(recorded(of, rank), 1);
  EXPECT_FALSE(rooted.grid());

  // Its kernels take a thousandth longer at the end: all would wait.
  const theory::MeshSetting even = setting("tp=8", 2);
  for (const bool late : {false, true}) {
    theory::FewestRanks fewest(even.layout, machine(), price);
    for (int rank = 0; rank < 8; ++rank) {
      Program program = recorded(even, rank);
      if (late && rank == 7) {
        for (KernelCost& cost : program.costs) cost.flops *= 1.001;
      }
      EXPECT_TRUE(fewest.grid());
      const double seconds = theory::kernels_seconds(program, price);
      fewest.add(std::move(program), seconds);
    }
    EXPECT_EQ(fewest.grid().has_value(), !late);
  }
}

// Ranks of long sequences do some of their attention elsewhere.
TEST(PlayedRanks, MayDoPartOfTheirWorkElsewhereWhichIsSaid) {
  const theory::MeshSetting of = setting("sp=16", 2);
  const auto price = [](const KernelCost& cost) { return theory::kernel_seconds(cost, machine()); };
  theory::FewestRanks fewest(of.layout, machine(), price);
  std::vector<Program> programs;
  for (int rank = 0; rank < 16; ++rank) {
    programs.push_back(recorded(of, rank));
    fewest.add(programs.back(), theory::kernels_seconds(programs.back(), price));
  }
  ASSERT_TRUE(fewest.grid());
  EXPECT_GT(fewest.difference(), 2e-3);
  EXPECT_LT(fewest.difference(), 2e-2);
  const PlayedRun whole = played(programs, {1}, machine());
  const PlayedRun folded = played(std::span(programs).first(kGpus), {4}, machine());
  EXPECT_NEAR(folded.seconds, whole.seconds, fewest.difference() * whole.seconds);
  EXPECT_EQ(theory::ranks_remark(4, 16, 0.002), "");
  EXPECT_EQ(theory::ranks_remark(4, 16, 0.012),
            "4 ranks were played for all 16, though others do up to 1.2 % of their work between other messages");
}

TEST(PlayedRanks, DifferByAsMuchAsWithAllLayers) {
  const theory::MeshSetting of = setting("sp=16", 2);
  const auto price = [](const KernelCost& cost) { return theory::kernel_seconds(cost, machine()); };
  const auto difference = [&](double seconds, double times) {
    theory::FewestRanks fewest(of.layout, machine(), price, times);
    for (int rank = 0; rank < 16; ++rank) fewest.add(recorded(of, rank), seconds);
    return fewest.grid() ? fewest.difference() : 1;
  };
  const double one = difference(10, 1);
  EXPECT_GT(one, 0);
  EXPECT_DOUBLE_EQ(difference(10, 3), 3 * one);
  EXPECT_DOUBLE_EQ(difference(20, 3), 1.5 * one);
  EXPECT_EQ(difference(10, 0.021 / one), 1);
}

TEST(PlayedRanks, OfManyLayersSayHowMuchTheyDiffer) {
  const theory::Simulated step = theory::simulate(setting("sp=16", 64), machine(), {});
  EXPECT_EQ(step.played, kGpus);
  EXPECT_GT(step.ranks_difference, 2e-3);
  EXPECT_LT(step.ranks_difference, 2e-2);
}

TEST(PlayedRanks, OfManyLayersAreThoseOfANode) {
  const theory::Simulated step = theory::simulate(setting("dp=2,zero3=8", 64), machine(), {});
  EXPECT_EQ(step.played, kGpus);
  EXPECT_EQ(step.layers, 6U);
}

TEST(PlayedRanks, DoTheSameWithTheSameOperationsBetweenRanksAsFarAway) {
  const theory::MeshSetting of = setting("sp=8", 2);
  const sim::UnitGrid grid{.unit = kGpus, .along = {2}};
  const auto price = [](const KernelCost& cost) { return 1e-6 + cost.flops * 1e-12; };
  const Program first = recorded(of, 1);
  const Program other = recorded(of, 5);
  const auto same = [&](const Program& of_other) { return differs_by(first, of_other, 1, grid, price).has_value(); };
  EXPECT_TRUE(same(other));

  const auto find = [](Program& in, ItemKind kind) { return std::ranges::find(in.items, kind, &ProgramItem::kind); };
  using Change = std::function<void(Program&)>;
  const auto first_call = [](auto OperationInfo::*field, auto value) -> Change {
    return [=](Program& in) { in.calls.front().*field = value; };
  };
  const std::vector<Change> others = {
      [&](Program& in) { in.items.erase(find(in, ItemKind::wait)); },
      [&](Program& in) { find(in, ItemKind::wait)->amount += 1; },
      [&](Program& in) { find(in, ItemKind::post)->stream ^= 1; },
      [](Program& in) { std::swap(in.groups.begin()->second[0], in.groups.begin()->second[1]); },
      [](Program& in) { in.calls.front().bytes += 100'000'000; },
      [](Program& in) { in.calls.front().algorithm = find_algorithm(Op::barrier, Algorithm::rooted)->start; },
      first_call(&ProgramCall::op, Op::barrier),
      first_call(&ProgramCall::dtype, DType::f64),
      first_call(&ProgramCall::purpose, Purpose::other),
      first_call(&ProgramCall::root, 3),
      first_call(&ProgramCall::source, 3),
      first_call(&ProgramCall::tag, 3),
  };
  for (std::size_t i = 0; i < others.size(); ++i) {
    Program copy = other;
    others[i](copy);
    EXPECT_FALSE(same(copy)) << i;
  }
  Program nearly = other;
  nearly.calls.front().bytes += 2;
  EXPECT_TRUE(same(nearly));
  for (KernelCost& cost : nearly.costs) cost.flops *= 1.02;
  const double seconds = theory::kernels_seconds(first, price);
  EXPECT_NEAR(*differs_by(first, nearly, 1, grid, price), 0.02 * seconds, 0.005 * seconds);
}

// What each rank gets of a call, too, must be as far away.
TEST(PlayedRanks, DoTheSameWithAsManyBytesForEach) {
  const sim::UnitGrid grid{.unit = 1, .along = {3}};
  const auto program = [](const std::vector<std::size_t>& counts) {
    ProgramCall call;
    call.op = Op::all_to_all;
    call.dtype = DType::f64;
    call.algorithm = find_algorithm(Op::all_to_all, Algorithm::direct)->start;
    call.arguments.chunks = call.arguments.send_chunks = Chunks::listed(counts);
    return Program{.items = {{.kind = ItemKind::call, .amount = 1}}, .costs = {}, .calls = {call}, .groups = {{0, {0, 1, 2}}}};
  };
  const auto same = [&](const std::vector<std::size_t>& counts) {
    return differs_by(program({100, 200, 400}), program(counts), 1, grid, [](const KernelCost&) { return 0.0; }).has_value();
  };
  EXPECT_TRUE(same({400, 100, 200}));  // itself 100, the rank after it 200
  EXPECT_FALSE(same({100, 200, 400}));
  EXPECT_FALSE(same({200, 400, 100}));
}

// A small call among ranks that aren't a circle is played by the direct algorithm; a large one can't be.
TEST(PlayedRanks, MakeSmallCallsInAnyOrder) {
  ProgramCall call;
  call.op = Op::all_reduce;
  call.algorithm = find_algorithm(Op::all_reduce, Algorithm::ring)->start;
  Start* const direct = find_algorithm(Op::all_reduce, Algorithm::direct)->start;
  call.bytes = 1024;
  EXPECT_EQ(folded_algorithm(call, 64, true), call.algorithm);
  EXPECT_EQ(folded_algorithm(call, 64, false), direct);
  EXPECT_EQ(folded_algorithm(call, 65, false), nullptr);
  call.algorithm = find_algorithm(Op::all_reduce, Algorithm::rooted)->start;
  EXPECT_EQ(folded_algorithm(call, 64, true), direct);
  call.op = Op::broadcast;
  call.algorithm = find_algorithm(Op::broadcast, Algorithm::ring)->start;
  EXPECT_EQ(folded_algorithm(call, 2, true), nullptr);
}

TEST(PlayedRanks, AreACircleWhereTurningKeepsTheirOrder) {
  const sim::UnitGrid grid{.unit = 2, .along = {2, 3}};
  EXPECT_TRUE(is_circle({0, 2, 4}, grid));  // along the inner axis
  EXPECT_TRUE(is_circle({0, 1, 2, 3, 4, 5}, grid));
  EXPECT_TRUE(is_circle({0, 6}, grid));
  EXPECT_TRUE(is_circle({0, 1}, grid));
  EXPECT_FALSE(is_circle({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, grid));  // of both: 4 5 is followed by 6 7, shifted by 0 1
  EXPECT_TRUE(is_circle({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {.unit = 2, .along = {6}}));
}

}  // namespace
}  // namespace tsprun::detail::test::played_ranks_test
