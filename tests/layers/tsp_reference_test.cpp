// A training step under TSP against the reference, which shares no code with it: plain loops, proven by finite differences and
// PyTorch.
#include "tests/layers/model_run.h"
#include "tests/reference/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tsprun::detail::test::tsp_reference_test {
namespace {

/// Runs the reference in f64 on the weights that the model has, rounded to its dtype.
void expect_reference(const ModelCase& of, int ranks, double tolerance) {
  const std::string where = of.describe() + ", D " + std::to_string(ranks);
  Tensors weights;
  const ModelRun run = run_model(of, ranks, &weights);
  const BatchData data(of);
  const reference::StepResult<double> expected =
      reference::model<double>(of.config, of.batch, of.sequence, weights, data.ids, data.labels, true,
                               {.training = true, .seed = of.seed, .step = kTestStep});
  EXPECT_NEAR(run.loss, expected.loss, tolerance * std::abs(expected.loss)) << where;
  expect_close(run.gradients, expected.gradients, tolerance, where);
  double squares = 0;
  for (const auto& [name, values] : expected.gradients) squares += norm_of(values) * norm_of(values);
  EXPECT_NEAR(run.gradient_norm, std::sqrt(squares), tolerance * std::sqrt(squares)) << where;
}

/// A random model whose query heads `ranks` divides: any n_kv that divides n_h, odd sizes, sequences from 1 token on.
ModelCase random_case(std::mt19937_64& random, int ranks) {
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  const std::size_t query_heads = static_cast<std::size_t>(ranks) * between(1, 3);
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

TEST(TspAgainstReference, EveryGradientForRandomShapes) {
  std::mt19937_64 random(20261121);
  for (int i = 0; i < 12; ++i) {
    for (const int ranks : {1, 2, 3, 4, 8}) expect_reference(random_case(random, ranks), ranks, 1e-11);
  }
}

TEST(TspAgainstReference, InSinglePrecision) {
  std::mt19937_64 random(7);
  for (const int ranks : {1, 2, 4, 8}) {
    for (int i = 0; i < 3; ++i) {
      ModelCase of = random_case(random, ranks);
      of.dtype = DType::f32;
      expect_reference(of, ranks, 2e-5);
    }
  }
}

TEST(TspAgainstReference, WithBf16Storage) {
  std::mt19937_64 random(8);
  for (const int ranks : {1, 2, 4}) {
    for (int i = 0; i < 3; ++i) {
      ModelCase of = random_case(random, ranks);
      of.config.layers = 1;
      of.config.hidden = 64;
      of.sequence += 20;
      of.dtype = DType::bf16;
      expect_reference(of, ranks, 2e-2);
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::tsp_reference_test
