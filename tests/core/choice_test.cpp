// The choice of algorithms: what the table says, and the grammar of its overrides.

#include "core/collectives/registry.h"

#include "tests/support/refusal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tsprun::detail::choice_test {
namespace {

std::string refusal(const std::string& overrides) {
  return test::refused_text([&] { const ChoiceTable table(overrides); });
}

TEST(ChoiceTable, EveryOperationHasAnAlgorithmThatExistsForIt) {
  const ChoiceTable table;
  for (int i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    for (const std::uint64_t bytes : {0ULL, 8ULL, 65536ULL, 65537ULL, 1ULL << 40}) {
      for (const int ranks : {1, 2, 8, 64, 65, 1024}) {
        for (const bool views : {false, true})
          EXPECT_TRUE(has_algorithm(op, table.choose(op, bytes, {.ranks = ranks, .views = views}))) << name(op);
      }
    }
  }
}

TEST(ChoiceTable, LargeBuffersGoDirectWherePeersCanBeViewedAndElseRound) {
  const ChoiceTable table;
  for (const Op op : {Op::broadcast, Op::all_gather, Op::reduce_scatter, Op::all_reduce, Op::reduce}) {
    EXPECT_EQ(table.choose(op, 64 << 20, {.ranks = 8, .views = true}), Algorithm::direct);
    EXPECT_EQ(table.choose(op, 64 << 20, {.ranks = 8, .views = false}), Algorithm::ring);
  }
  EXPECT_EQ(table.choose(Op::all_reduce, 8, {.ranks = 8, .views = true}), Algorithm::one_shot);
}

TEST(ChoiceTable, OverridesComeFirstAndOnlyForTheirSizes) {
  const ChoiceTable table("all_reduce=ring,all_gather<64K=ring");
  EXPECT_EQ(table.choose(Op::all_reduce, 8, {.ranks = 8, .views = true}), Algorithm::ring);
  EXPECT_EQ(table.choose(Op::all_gather, 65535, {.ranks = 8, .views = true}), Algorithm::ring);
  EXPECT_EQ(table.choose(Op::all_gather, 65536, {.ranks = 8, .views = true}), Algorithm::direct);
  EXPECT_EQ(table.choose(Op::broadcast, 8, {.ranks = 8, .views = true}), Algorithm::direct);
}

TEST(ChoiceTable, TheFirstOfTwoOverridesWins) {
  const ChoiceTable table("all_reduce<1M=one_shot,all_reduce=ring");
  EXPECT_EQ(table.choose(Op::all_reduce, (1 << 20) - 1, {.ranks = 8, .views = true}), Algorithm::one_shot);
  EXPECT_EQ(table.choose(Op::all_reduce, 1 << 20, {.ranks = 8, .views = true}), Algorithm::ring);
}

TEST(ChoiceTable, GroupsThatSpanNodesGoByRailsAndSumsOnlyIfTheyMayBeReassociated) {
  const GroupShape grid{.ranks = 8, .views = false, .grid = true, .grid_views = true};
  const ChoiceTable strict;
  const ChoiceTable free("", true);
  EXPECT_EQ(strict.choose(Op::all_gather, 64 << 20, grid), Algorithm::hierarchical);
  EXPECT_EQ(strict.choose(Op::broadcast, 64 << 20, grid), Algorithm::hierarchical);
  EXPECT_EQ(strict.choose(Op::all_reduce, 64 << 20, grid), Algorithm::ring);
  EXPECT_EQ(strict.choose(Op::reduce_scatter, 64 << 20, grid), Algorithm::ring);
  EXPECT_EQ(free.choose(Op::all_reduce, 64 << 20, grid), Algorithm::hierarchical);
  EXPECT_EQ(free.choose(Op::reduce_scatter, 64 << 20, grid), Algorithm::hierarchical);
  EXPECT_EQ(free.choose(Op::all_reduce, 64 << 20, {.ranks = 8, .views = false}), Algorithm::ring);
  EXPECT_EQ(free.choose(Op::all_reduce, 128 << 10, {.ranks = 8, .views = false}), Algorithm::tree);
  EXPECT_EQ(strict.choose(Op::all_reduce, 128 << 10, {.ranks = 8, .views = false}), Algorithm::ring);
  EXPECT_EQ(free.choose(Op::all_reduce, 8 << 10, {.ranks = 1000, .views = false}), Algorithm::tree);
  EXPECT_EQ(free.choose(Op::all_reduce, 8 << 10, {.ranks = 1000, .views = true}), Algorithm::rooted);
  EXPECT_EQ(free.choose(Op::all_reduce, 1 << 20, {.ranks = 1000, .views = true}), Algorithm::direct);
  EXPECT_EQ(free.choose(Op::all_reduce, 2 << 20, {.ranks = 64, .views = false}), Algorithm::tree);
  EXPECT_EQ(free.choose(Op::all_reduce, 2 << 20, {.ranks = 4, .views = false}), Algorithm::ring);
  EXPECT_EQ(free.choose(Op::all_reduce, 128 << 10, {.ranks = 3, .views = false}), Algorithm::ring);
  EXPECT_EQ(strict.choose(Op::all_reduce, 8 << 10, {.ranks = 1000, .views = false}), Algorithm::rooted);
  const ChoiceTable asked("all_reduce=hierarchical,barrier=hierarchical");
  EXPECT_EQ(asked.choose(Op::all_reduce, 64 << 20, grid), Algorithm::ring);
  EXPECT_EQ(asked.choose(Op::barrier, 0, grid), Algorithm::hierarchical);
  EXPECT_EQ(asked.choose(Op::barrier, 0, {.ranks = 8}), Algorithm::direct);
}

TEST(ChoiceTable, NoOverridesAreTheBuiltInTable) { EXPECT_EQ(ChoiceTable("").rows().size(), ChoiceTable().rows().size()); }

TEST(ChoiceTable, WrongOverridesAreRefusedByName) {
  EXPECT_NE(refusal("all_redux=ring").find("all_redux"), std::string::npos);
  EXPECT_NE(refusal("all_redux=ring").find("all_reduce"), std::string::npos);
  EXPECT_NE(
      refusal("broadcast=one_shot").find("broadcast has no algorithm \"one_shot\"; it has " + algorithm_names(Op::broadcast)),
      std::string::npos);
  EXPECT_EQ(algorithm_names(Op::broadcast).find("direct, ring"), 0U);
  EXPECT_NE(refusal("all_to_all=ring").find("has a choice"), std::string::npos);
  EXPECT_NE(refusal("all_reduce=automatic").find("automatic"), std::string::npos);
  EXPECT_NE(refusal("all_reduce<64X=ring").find("64X"), std::string::npos);
  for (const char* wrong : {"all_reduce", "=", "all_reduce=", "all_reduce<=ring", "all_reduce<0=ring", "all_reduce<-1=ring",
                            "all_reduce<99999999999999999999=ring", "all_reduce<99999999999G=ring", "all_reduce=ring,",
                            "all_reduce=ring,,broadcast=ring", " all_reduce=ring", "all_reduce<64KK=ring"}) {
    EXPECT_NE(refusal(wrong), "") << wrong;
  }
}

TEST(Names, GoThereAndBack) {
  for (int i = 0; i < kOps; ++i) EXPECT_EQ(op_from_name(name(static_cast<Op>(i))), static_cast<Op>(i));
  for (int i = 0; i < kReductionCount; ++i) {
    const auto reduction = static_cast<Reduction>(i);
    EXPECT_EQ(reduction_from_name(name(reduction)), reduction);
  }
  EXPECT_EQ(algorithm_from_name(name(Algorithm::automatic)), Algorithm::automatic);
  for (const AlgorithmRow& row : algorithm_rows()) EXPECT_EQ(algorithm_from_name(name(row.algorithm)), row.algorithm);
  EXPECT_EQ(op_from_name("allreduce"), std::nullopt);
  EXPECT_EQ(reduction_from_name("prod"), std::nullopt);
}

}  // namespace
}  // namespace tsprun::detail::choice_test
