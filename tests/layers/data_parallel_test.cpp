// Data parallelism: sequences of the batch over the ranks of an axis, gradients summed. Loss and every gradient against one rank,
// and the bytes that it adds.
#include "layers/theory/traffic.h"
#include "tests/layers/closed_formulas.h"
#include "tests/layers/model_run.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tsprun::detail::test::data_parallel_test {
namespace {

constexpr double kExact = 1e-11;

Layout mesh(int data, int ranks) { return Layout{{{AxisKind::dp, data}, {AxisKind::tsp, ranks}}}; }

void expect_same_on(const ModelCase& of, const Layout& layout) {
  const std::string where =
      of.describe() + ", dp " + std::to_string(layout.data()) + ", tsp " + std::to_string(layout.sequence());
  const ModelRun one = run_model(of, 1);
  const ModelRun many = run_model(of, layout);
  ASSERT_TRUE(std::isfinite(one.loss));
  EXPECT_NEAR(many.loss, one.loss, kExact * std::abs(one.loss)) << where;
  EXPECT_NEAR(many.gradient_norm, one.gradient_norm, kExact * one.gradient_norm) << where;
  expect_close(many.gradients, one.gradients, kExact, where);
}

TEST(DataParallel, GradientsEqualThoseOfOneRank) {
  const ModelCase of{.config = small_config(24, 2, 8, 4, 4, 21, 41), .batch = 4, .sequence = 13};
  for (const int data : {2, 4}) expect_same_on(of, mesh(data, 1));
}

TEST(DataParallel, TogetherWithTsp) {
  const ModelCase of{.config = small_config(24, 2, 8, 2, 4, 21, 41), .batch = 4, .sequence = 13};
  expect_same_on(of, mesh(2, 2));
  expect_same_on(of, mesh(2, 4));
  expect_same_on(of, mesh(4, 2));
  ModelCase tied = of;
  tied.config.tied_embeddings = true;
  expect_same_on(tied, mesh(2, 2));
}

TEST(DataParallel, SumsMoveAsManyBytesAsTheFormula) {
  const ModelCase of{.config = small_config(24, 3, 8, 2, 4, 21, 41), .batch = 4, .sequence = 13, .dtype = DType::f32};
  for (const int data : {2, 4}) {
    const ModelRun run = run_model(of, mesh(data, 1));
    const formulas::Traffic table = formulas::dp_block(of.setting(), data) * of.config.layers;
    std::uint64_t gradients = 0;
    std::uint64_t vocabulary = 0;
    std::uint64_t forward = 0;
    for (std::size_t rank = 0; rank < run.backward.size(); ++rank) {
      gradients += run.backward[rank].received[static_cast<int>(Purpose::gradients)];
      vocabulary += run.backward[rank].received[static_cast<int>(Purpose::embedding)];
      vocabulary += run.backward[rank].received[static_cast<int>(Purpose::head)];
      for (int i = 0; i < kPurposes; ++i) {
        if (static_cast<Purpose>(i) != Purpose::other) forward += run.forward[rank].received[i];
      }
    }
    EXPECT_EQ(gradients, table.backward[Purpose::gradients]) << data;
    EXPECT_EQ(vocabulary, 2 * 2 * of.config.vocabulary * of.config.hidden * sizeof(float) * static_cast<std::uint64_t>(data - 1));
    EXPECT_EQ(forward, 0U);
  }
}

TEST(DataParallel, ABatchThatDoesntDivideIsRefused) {
  const ModelCase of{.config = small_config(16, 1, 4, 4, 4, 12, 20), .batch = 3, .sequence = 5};
  try {
    run_model(of, mesh(2, 1));
    FAIL() << "3 sequences on 2 ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    EXPECT_NE(std::string(error.what()).find("batch of 3 sequences"), std::string::npos) << error.what();
  }
}

TEST(DataParallel, EvaluationTakesAnyBatch) {
  const ModelCase of{.config = small_config(16, 2, 4, 2, 4, 12, 20), .batch = 3, .sequence = 7};
  const BatchData data(of);
  const auto loss_on = [&](const Layout& layout) {
    double loss = 0;
    run_ranks(layout.ranks(), [&](Context& context) {
      Rank rank(context);
      Mesh mesh(context.world(), layout);
      Model model(rank, mesh, {.config = of.config, .dtype = DType::f64});
      model.parameters().fill_fresh(of.config.layers, of.seed);
      disturb(model.parameters());
      const Loss mean = model.evaluate(data.view(of));
      if (rank.rank() == 0) loss = mean.mean;
    });
    return loss;
  };
  const double one = loss_on(mesh(1, 1));
  for (const Layout& layout : {mesh(2, 1), mesh(2, 2), mesh(4, 2)}) EXPECT_NEAR(loss_on(layout), one, kExact * one);
}

}  // namespace
}  // namespace tsprun::detail::test::data_parallel_test
