// A training step under ZeRO-3 against the reference; its traffic, what each rank holds, and its bits.
#include "layers/theory/layouts.h"
#include "layers/theory/traffic.h"
#include "tests/layers/model_run.h"
#include "tests/layers/step_formulas.h"
#include "tests/reference/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tsprun::detail::test::zero3_test {
namespace {

Layout zero3(int ranks) { return Layout{{{AxisKind::zero3, ranks}}}; }

/// Runs the reference in f64 on the weights that the model has, rounded to its dtype.
void expect_reference(const ModelCase& of, int ranks, double tolerance) {
  const std::string where = of.describe() + ", zero3 " + std::to_string(ranks);
  Tensors weights;
  const ModelRun run = run_model(of, zero3(ranks), &weights);
  const BatchData data(of);
  const reference::StepResult<double> expected =
      reference::model<double>(of.config, of.batch, of.sequence, weights, data.ids, data.labels);
  EXPECT_NEAR(run.loss, expected.loss, tolerance * std::abs(expected.loss)) << where;
  expect_close(run.gradients, expected.gradients, tolerance, where);
}

/// Any number of heads: the ranks need not divide them.
ModelCase random_case(std::mt19937_64& random) {
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  const std::size_t query_heads = between(1, 9);
  std::vector<std::size_t> divisors;
  for (std::size_t n = 1; n <= query_heads; ++n) {
    if (query_heads % n == 0) divisors.push_back(n);
  }
  ModelCase of;
  of.config = small_config(between(3, 24), between(1, 3), query_heads, divisors[random() % divisors.size()], 2 * between(1, 4),
                           between(1, 40), between(2, 60), random() % 3 == 0);
  of.batch = between(1, 3);
  of.sequence = between(1, 37);
  of.recompute = static_cast<Recompute>(random() % 3);
  of.kv_bucket_heads = random() % 3;
  of.seed = random();
  return of;
}

TEST(Zero3, GradientsEqualTheReferenceForRandomShapes) {
  std::mt19937_64 random(20261123);
  for (int i = 0; i < 6; ++i) {
    for (const int ranks : {1, 2, 3, 4, 8}) expect_reference(random_case(random), ranks, 1e-11);
  }
}

TEST(Zero3, GradientsEqualTheReferenceInSmallerTypes) {
  std::mt19937_64 random(9);
  for (const int ranks : {1, 2, 3, 8}) {
    ModelCase of = random_case(random);
    of.dtype = DType::f32;
    expect_reference(of, ranks, 2e-5);
    of.config.layers = 1;
    of.config.hidden = 64;
    of.sequence += 20;
    of.dtype = DType::bf16;
    expect_reference(of, ranks, 2e-2);
  }
}

TEST(Zero3, ReceivedBytesEqualTheTable) {
  std::mt19937_64 random(11);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      ModelCase of = random_case(random);
      of.recompute = recompute;
      of.dtype = ranks == 3 ? DType::bf16 : DType::f32;
      const ModelRun run = run_model(of, zero3(ranks));
      const formulas::Traffic table = formulas::zero3_block(of.setting(), ranks) * of.config.layers;
      for (const Purpose purpose : {Purpose::weights, Purpose::kv, Purpose::activations, Purpose::gradients}) {
        std::uint64_t forward = 0;
        std::uint64_t backward = 0;
        for (const TrafficCounters& rank : run.forward) forward += rank.received[static_cast<int>(purpose)];
        for (const TrafficCounters& rank : run.backward) backward += rank.received[static_cast<int>(purpose)];
        EXPECT_EQ(forward, table.forward[purpose]) << name(purpose) << " forward, " << of.describe() << ", D " << ranks;
        EXPECT_EQ(backward, table.backward[purpose]) << name(purpose) << " backward, " << of.describe() << ", D " << ranks;
      }
    }
  }
}

TEST(Zero3, RanksHoldTheirRowsAndTheirTokens) {
  std::mt19937_64 random(13);
  for (const int ranks : {1, 2, 3, 8}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      ModelCase of = random_case(random);
      of.dtype = dtype;
      const ModelConfig& config = of.config;
      const ElementBytes bytes = ElementBytes::of(dtype);
      const ModelRun run = run_model(of, zero3(ranks));
      const Chunks attention = Chunks::balanced(ranks, 2 * (config.query_width({}) + config.kv_width({})));
      const Chunks mlp = Chunks::balanced(ranks, 3 * config.intermediate);
      const Chunks vocabulary = Chunks::balanced(ranks, config.vocabulary);
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string where = of.describe() + ", rank " + std::to_string(rank) + " of " + std::to_string(ranks);
        const std::uint64_t rows = config.layers * (attention.count(rank) + mlp.count(rank)) +
                                   (config.tied_embeddings ? 1 : 2) * vocabulary.count(rank) + 2 * config.layers + 1;
        const std::uint64_t elements = rows * config.hidden;
        const CategoryBytes& peak = run.peaks[static_cast<std::size_t>(rank)];
        EXPECT_EQ(peak[Category::parameters], elements * bytes.element) << where;
        EXPECT_EQ(peak[Category::gradients], elements * bytes.accumulated) << where;
        EXPECT_EQ(peak[Category::optimizer], elements * bytes.accumulated * (dtype == DType::bf16 ? 3U : 2U)) << where;
        EXPECT_EQ(peak[Category::activations],
                  formulas::activation_bytes(of.setting(), Zigzag(of.sequence, ranks).tokens(rank), kTokenBytes))
            << where;
      }
    }
  }
}

TEST(Zero3, NeitherThreadsNorAlgorithmsChangeABit) {
  ModelCase of{.config = small_config(32, 2, 6, 3, 8, 41, 50), .batch = 2, .sequence = 33, .dtype = DType::f32};
  const ModelRun once = run_model(of, zero3(4));
  of.threads = 3;
  of.algorithms = "all_gather=ring,reduce_scatter=ring,all_reduce=ring";
  const ModelRun again = run_model(of, zero3(4));
  EXPECT_EQ(once.loss, again.loss);
  EXPECT_EQ(once.gradients, again.gradients);
}

}  // namespace
}  // namespace tsprun::detail::test::zero3_test
