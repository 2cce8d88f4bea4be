// Training under different layouts: the same curve within rounding, the same bits from run to run; a checkpoint of one layout
// goes on under another.
#include "layers/checkpoints/checkpoint.h"
#include "layers/model/model.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

namespace tsprun::detail::test::layouts_training_test {
namespace {

struct Curve {
  std::vector<double> losses;  // by step, from the first that ran
  std::vector<double> norms;
};

constexpr std::uint64_t kSteps = 50;

/// Steps of which `save_at` goes to a checkpoint, or those after one.
Curve train(const Layout& on, std::uint64_t steps, const std::optional<FoundCheckpoint>& from = {},
            const std::optional<std::filesystem::path>& save_to = {}, std::uint64_t save_at = 0) {
  Curve curve;
  run_ranks(on.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), on);
    const ModelConfig config = small_config(32, 2, 8, 2, 4, 44, 50);
    Model model(rank, mesh, {.config = config, .dtype = DType::f32, .training = true});
    std::uint64_t step = 1;
    if (from) {
      load_checkpoint(rank, context.world(), model.parameters(), *from);
      step = from->state.step + 1;
    } else {
      model.parameters().fill_fresh(config.layers, 7);
    }
    for (; step <= steps; ++step) {
      const ModelCase of{.config = config, .batch = 4, .sequence = 24, .seed = step % 5};
      const BatchData data(of);
      const Loss loss = model.forward_backward(data.view(of));
      const double norm = model.gradient_norm();
      model.update({.learning_rate = 3e-3, .step = step}, norm);
      if (rank.rank() == 0) {
        curve.losses.push_back(loss.mean);
        curve.norms.push_back(norm);
      }
      if (save_to && step == save_at) {
        CheckpointState state;
        state.step = step;
        state.layout = on;
        save_checkpoint(rank, context.world(), model.parameters(), config, state, *save_to);
      }
    }
  });
  return curve;
}

Layout dense(int tensor, int sequence, TensorExchange exchange = TensorExchange::plain) {
  return Layout{{{AxisKind::tp, tensor}, {AxisKind::sp, sequence}}}.with(exchange);
}

std::vector<Layout> layouts() { return each_axis(4, {dense(2, 2), Layout::parse("dp=2,tsp=2"), Layout::parse("tp=2,tsp=2")}); }

void expect_near(const Curve& actual, const Curve& expected, std::size_t skipped, const std::string& where) {
  ASSERT_EQ(actual.losses.size() + skipped, expected.losses.size()) << where;
  for (std::size_t i = 0; i < actual.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i + skipped], 1e-4 * expected.losses[i + skipped])
        << where << ", step " << i + skipped + 1;
  }
}

TEST(LayoutsTraining, CurvesAgreeOverFiftySteps) {
  const Curve one = train(Layout::tsp(1), kSteps);
  ASSERT_EQ(one.losses.size(), kSteps);
  EXPECT_LT(one.losses.back(), 0.9 * one.losses.front()) << "it hasn't learned: the curves would prove little";
  for (const Layout& on : layouts()) expect_near(train(on, kSteps), one, 0, on.label());
}

TEST(LayoutsTraining, TheSameBitsFromRunToRun) {
  for (const Layout& on : layouts()) {
    const Curve first = train(on, 6);
    const Curve second = train(on, 6);
    EXPECT_EQ(first.losses, second.losses) << on.label();
    EXPECT_EQ(first.norms, second.norms) << on.label();
  }
}

TEST(LayoutsTraining, ACheckpointGoesOnUnderAnotherLayout) {
  constexpr std::uint64_t kAll = 8;
  constexpr std::uint64_t kSaved = 4;
  for (const Layout& saved : std::vector<Layout>{dense(2, 1), dense(2, 2, TensorExchange::sequence)}) {
    const TemporaryFolder folder;
    const Curve whole = train(saved, kAll, {}, folder.path(), kSaved);
    std::vector<std::string> skipped;
    const FoundCheckpoint found = find_checkpoint(folder.path(), skipped);
    const Curve again = train(saved, kAll, found);
    EXPECT_EQ(again.losses, std::vector<double>(whole.losses.begin() + kSaved, whole.losses.end())) << saved.label();
    for (const Layout& on : layouts()) {
      expect_near(train(on, kAll, found), whole, kSaved, saved.label() + " then " + on.label());
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::layouts_training_test
