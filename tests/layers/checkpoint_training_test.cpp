// A training run that is cut in two by a checkpoint: the same curve, bit by bit under the same layout, within rounding under
// another.
#include "layers/checkpoints/checkpoint.h"
#include "layers/model/model.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace tsprun::detail::test::checkpoint_training_test {
namespace {

constexpr std::uint64_t kSteps = 8;
constexpr std::uint64_t kSavedAt = 4;

enum class Trained : std::uint8_t { untied, tied, gpt2 };

ModelConfig trained_config(Trained which) {
  if (which == Trained::gpt2) return small_gpt2_config(2, 6, 6, 44, 50);
  return small_config(32, 2, 6, 2, 8, 44, 50, which == Trained::tied);
}

struct Curve {
  std::vector<double> losses;  // by step, from the first that ran
  std::vector<double> norms;
};

/// Steps first … kSteps, of which `save_to` gets the one of kSavedAt.
Curve train(int ranks, DType dtype, Trained which, const std::optional<FoundCheckpoint>& from,
            const std::optional<std::filesystem::path>& save_to) {
  Curve curve;
  run_ranks(ranks, [&](Context& context) {
    Rank rank(context);
    const ModelConfig config = trained_config(which);
    Mesh mesh(context.world(), Layout::tsp(ranks));
    Model model(rank, mesh, {.config = config, .dtype = dtype, .training = true});
    std::uint64_t step = 1;
    if (from) {
      load_checkpoint(rank, context.world(), model.parameters(), *from);
      step = from->state.step + 1;
    } else {
      model.parameters().fill_fresh(config.layers, 7);
    }
    for (; step <= kSteps; ++step) {
      const ModelCase of{.config = config, .batch = 2, .sequence = 23, .seed = step};
      const BatchData data(of);
      const Loss loss = model.forward_backward(data.view(of));
      const double norm = model.gradient_norm();
      model.update({.learning_rate = 1e-2, .step = step}, norm);
      if (rank.rank() == 0) {
        curve.losses.push_back(loss.mean);
        curve.norms.push_back(norm);
      }
      if (save_to && step == kSavedAt) {
        CheckpointState state;
        state.step = step;
        state.dtype = dtype;
        state.layout = Layout::tsp(ranks);
        save_checkpoint(rank, context.world(), model.parameters(), config, state, *save_to);
      }
    }
  });
  return curve;
}

std::vector<double> tail(const std::vector<double>& values) { return {values.begin() + kSavedAt, values.end()}; }

void expect_same_curve(DType dtype, Trained which, double tolerance) {
  for (const int ranks : {1, 2, 3}) {
    const TemporaryFolder folder;
    const Curve whole = train(ranks, dtype, which, std::nullopt, folder.path());
    ASSERT_EQ(whole.losses.size(), kSteps);
    EXPECT_LT(whole.losses.back(), whole.losses.front() * 1.2) << "the run diverges: it would prove little";
    std::vector<std::string> skipped;
    const FoundCheckpoint found = find_checkpoint(folder.path(), skipped);
    for (const int again : {ranks, 1, 2, 6}) {
      const Curve resumed = train(again, dtype, which, found, std::nullopt);
      ASSERT_EQ(resumed.losses.size(), kSteps - kSavedAt);
      if (again == ranks) {
        EXPECT_EQ(resumed.losses, tail(whole.losses)) << ranks;
        EXPECT_EQ(resumed.norms, tail(whole.norms)) << ranks;
        continue;
      }
      for (std::size_t i = 0; i < resumed.losses.size(); ++i) {
        EXPECT_NEAR(resumed.losses[i], whole.losses[kSavedAt + i], tolerance * whole.losses[kSavedAt + i])
            << ranks << " then " << again << ", step " << kSavedAt + i + 1;
      }
    }
  }
}

TEST(CheckpointTraining, GoesOnBitIdenticallyInF64) { expect_same_curve(DType::f64, Trained::untied, 1e-11); }
TEST(CheckpointTraining, GoesOnBitIdenticallyInF32) { expect_same_curve(DType::f32, Trained::untied, 1e-4); }
TEST(CheckpointTraining, GoesOnBitIdenticallyInBf16WithItsMasterWeights) {
  expect_same_curve(DType::bf16, Trained::untied, 2e-2);
}
TEST(CheckpointTraining, GoesOnBitIdenticallyWithTiedEmbeddings) { expect_same_curve(DType::f32, Trained::tied, 1e-4); }
TEST(CheckpointTraining, GoesOnBitIdenticallyWithGpt2AndItsDropout) { expect_same_curve(DType::f64, Trained::gpt2, 1e-11); }

}  // namespace
}  // namespace tsprun::detail::test::checkpoint_training_test
