// A whole training step under TSP: loss and every gradient on D ranks against one rank.
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tsprun::detail::test::tsp_model_test {
namespace {

constexpr double kExact = 1e-11;

void expect_same_on(const ModelCase& of, std::initializer_list<int> degrees) {
  const ModelRun one = run_model(of, 1);
  ASSERT_TRUE(std::isfinite(one.loss));
  for (const int ranks : degrees) {
    const std::string where = of.describe() + ", D " + std::to_string(ranks);
    const ModelRun many = run_model(of, ranks);
    EXPECT_NEAR(many.loss, one.loss, 1e-11 * std::abs(one.loss)) << where;
    EXPECT_NEAR(many.gradient_norm, one.gradient_norm, 1e-11 * one.gradient_norm) << where;
    expect_close(many.gradients, one.gradients, kExact, where);
  }
}

TEST(TspModel, GradientsEqualThoseOfOneRankForMultiHeadAttention) {
  expect_same_on({.config = small_config(24, 2, 8, 8, 4, 20, 40), .batch = 2, .sequence = 29}, {2, 4, 8});
}

TEST(TspModel, GradientsEqualThoseOfOneRankForGroupedQueries) {
  expect_same_on({.config = small_config(24, 2, 8, 4, 4, 21, 41), .batch = 1, .sequence = 37}, {2, 4, 8});
}

TEST(TspModel, KvHeadsFewerThanRanks) {
  expect_same_on({.config = small_config(16, 2, 8, 1, 6, 21, 41), .batch = 1, .sequence = 19}, {2, 4, 8});
  expect_same_on({.config = small_config(16, 2, 8, 2, 6, 21, 41), .batch = 1, .sequence = 19}, {4, 8});
}

TEST(TspModel, KvHeadsThatRanksDontDivide) {
  expect_same_on({.config = small_config(16, 2, 12, 6, 4, 13, 17), .batch = 1, .sequence = 23}, {4, 12});
  expect_same_on({.config = small_config(16, 1, 12, 4, 4, 13, 17), .batch = 1, .sequence = 23}, {3, 6});
}

TEST(TspModel, SequencesShorterThanTheRanksAndOfOneToken) {
  for (const std::size_t sequence : {1U, 2U, 3U, 5U}) {
    expect_same_on({.config = small_config(16, 2, 8, 4, 4, 13, 17), .batch = 2, .sequence = sequence}, {2, 4, 8});
  }
}

TEST(TspModel, EveryRecomputationModeGivesTheSameGradients) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    expect_same_on({.config = small_config(24, 2, 6, 2, 4, 20, 40), .batch = 2, .sequence = 21, .recompute = recompute},
                   {2, 3, 6});
  }
}

TEST(TspModel, TiedEmbeddings) {
  expect_same_on({.config = small_config(24, 2, 4, 4, 4, 20, 40, true), .batch = 2, .sequence = 13}, {2, 4});
}

TEST(TspModel, BothWaysOfTheHead) {
  const ModelCase gathered{.config = small_config(16, 1, 4, 4, 4, 12, 300), .batch = 1, .sequence = 11};
  EXPECT_EQ(head_plan(gathered.setting()), HeadPlan::gather_activations);
  expect_same_on(gathered, {2, 4});
  const ModelCase rotated{.config = small_config(16, 1, 4, 4, 4, 12, 7), .batch = 3, .sequence = 40};
  EXPECT_EQ(head_plan(rotated.setting()), HeadPlan::rotate_weights);
  expect_same_on(rotated, {2, 4});
}

TEST(TspModel, BucketsOfAnySizeGiveTheSameGradients) {
  for (const std::size_t heads : {1U, 2U, 3U}) {
    expect_same_on({.config = small_config(24, 2, 12, 12, 4, 20, 40), .sequence = 21, .kv_bucket_heads = heads}, {1, 2, 4});
  }
}

TEST(TspModel, ThreadsDontChangeABit) {
  ModelCase of{.config = small_config(64, 2, 8, 4, 16, 80, 100), .batch = 2, .sequence = 65, .dtype = DType::f32};
  const ModelRun one = run_model(of, 2);
  of.threads = 3;
  const ModelRun three = run_model(of, 2);
  EXPECT_EQ(one.loss, three.loss);
  EXPECT_EQ(one.gradients, three.gradients);
}

TEST(TspModel, AlgorithmsOfCollectivesDontChangeABit) {
  ModelCase of{.config = small_config(32, 2, 8, 4, 8, 40, 50), .batch = 2, .sequence = 33, .dtype = DType::f32};
  const ModelRun direct = run_model(of, 4);
  of.algorithms = "broadcast=ring,all_gather=ring,reduce_scatter=ring,reduce=ring,all_reduce=ring";
  const ModelRun ring = run_model(of, 4);
  EXPECT_EQ(direct.loss, ring.loss);
  EXPECT_EQ(direct.gradients, ring.gradients);
}

}  // namespace
}  // namespace tsprun::detail::test::tsp_model_test
