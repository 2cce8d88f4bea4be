// Training steps in pipelines: the bits of the same layout without one, the bytes of the closed formula, and on every rank the
// memory and bytes that its dry run counts.
#include "layers/schedules/pipeline.h"

#include "tests/layers/model_run.h"
#include "tests/layers/step_formulas.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace tsprun::detail::test::pipeline_training_test {
namespace {

std::vector<Layout> layouts() {
  return {Layout::parse("pp=3"),           Layout::parse("pp=2,tsp=2"),
          Layout::parse("dp=2,pp=2"),      Layout::parse("dp=2,pp=2").with(DataSharing::zero1),
          Layout::parse("pp=2,zero3=2"),   Layout::parse("pp=2,sp=2").with(SequenceExchange::ulysses),
          Layout::parse("pp=2,tp=2,sp=2"), Layout::parse("dp=2,pp=2,tp=2").with(TensorExchange::sequence),
          Layout::parse("pp=2,tp=2,tsp=2")};
}

/// An uneven vocabulary, with K/V heads that tp copies; dropout, biases, learned positions and a tied embedding; gathered
/// activations and a tied embedding; layers that are all unlike, and a tied embedding; norms in unlike places.
std::vector<ModelCase> cases() {
  return {{.config = small_config(24, 3, 8, 2, 4, 21, 41), .batch = 12, .sequence = 13, .micro_batches = 3},
          {.config = small_gpt2_config(3, 8, 3, 21, 40), .batch = 8, .sequence = 11, .micro_batches = 4},
          {.config = small_config(16, 3, 8, 1, 4, 13, 600, true), .batch = 4, .sequence = 5, .micro_batches = 1},
          {.config = small_config(24, 3, 8, 2, 4, 21, 41), .batch = 4, .sequence = 13, .dtype = DType::bf16, .micro_batches = 2},
          {.config = small_unlike_config(2, true), .batch = 12, .sequence = 13, .micro_batches = 3},
          {.config = small_norms_config(2), .batch = 8, .sequence = 13, .micro_batches = 2}};
}

/// Returns bytes of a purpose that all ranks received in a step.
std::uint64_t received(const ModelRun& run, Purpose purpose) {
  std::uint64_t sum = 0;
  for (std::size_t rank = 0; rank < run.forward.size(); ++rank) {
    sum += theory::PurposeBytes::received(run.forward[rank])[purpose];
    sum += theory::PurposeBytes::received(run.backward[rank])[purpose];
  }
  return sum;
}

TEST(PipelineTraining, GivesTheBitsOfTheSameLayoutWithoutStages) {
  constexpr std::array modes = {Recompute::none, Recompute::selective, Recompute::full};
  std::size_t mode = 0;
  for (ModelCase of : cases()) {
    for (const Layout& layout : layouts()) {
      of.recompute = modes[mode++ % modes.size()];
      const std::string where = layout.label() + ", " + of.describe();
      const ModelRun piped = run_model(of, layout);
      const ModelRun once = run_model(of, layout.without(Cut::layers));
      if (of.config.tied_embeddings) {
        // The two sums of a tied embedding are added at another place.
        EXPECT_NEAR(piped.loss, once.loss, 1e-12 * once.loss) << where;
        EXPECT_NEAR(piped.gradient_norm, once.gradient_norm, (of.dtype == DType::f64 ? 1e-12 : 1e-6) * once.gradient_norm)
            << where;
        expect_close(piped.gradients, once.gradients, 1e-12, where);
      } else {
        EXPECT_EQ(piped.loss, once.loss) << where;
        EXPECT_EQ(piped.gradients, once.gradients) << where;
        EXPECT_EQ(piped.gradient_norm, once.gradient_norm) << where;
      }

      expect_counted(piped, where);
      for (std::size_t rank = 0; rank < piped.peaks.size(); ++rank)
        EXPECT_EQ(piped.peaks[rank], piped.forecast[rank]) << where << ", rank " << rank;
      EXPECT_EQ(received(piped, Purpose::activations),
                received(once, Purpose::activations) + formulas::over_boundaries(of.setting(), layout))
          << where;
      for (const Purpose purpose : {Purpose::weights, Purpose::kv, Purpose::gradients, Purpose::head, Purpose::embedding}) {
        const bool of_vocabulary = purpose == Purpose::head || purpose == Purpose::embedding;
        if (of_vocabulary && of.config.tied_embeddings) continue;
        std::uint64_t expected = received(once, purpose);
        // Replicas that share states gather a tied embedding on both of its stages.
        if (purpose == Purpose::weights && of.config.tied_embeddings && layout.shares_states())
          expected += of.config.vocabulary * of.config.hidden * of.setting().bytes.element;
        EXPECT_EQ(received(piped, purpose), expected) << name(purpose) << ", " << where;
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// The whole batch at once on one rank.
TEST(PipelineTraining, GivesTheGradientsOfOneRank) {
  for (const ModelCase& of : {cases()[0], cases()[1]}) {
    const Layout layout = Layout::parse("pp=2,tsp=2");
    const ModelRun piped = run_model(of, layout);
    ModelCase whole = of;
    whole.micro_batches = 1;
    const ModelRun alone = run_model(whole, Layout::tsp(1));
    EXPECT_NEAR(piped.loss, alone.loss, 1e-12 * alone.loss);
    EXPECT_NEAR(piped.gradient_norm, alone.gradient_norm, 1e-12 * alone.gradient_norm);
    expect_close(piped.gradients, alone.gradients, 1e-12, of.describe());
  }
}

/// On the first of two stages two micro-batches are under way, on the second one; four layers, two each.
TEST(PipelineTraining, HoldsAsManyActivationsAsTheScheduleHasUnderWay) {
  ModelCase of = cases()[0];
  of.config.layers = 4;
  of.micro_batches = 4;
  const Layout layout = Layout::parse("pp=2");
  const ModelRun piped = run_model(of, layout);
  const formulas::Count of_layers = formulas::activation_bytes(of.setting(), of.sequence, 0) / 2;
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const formulas::Count under_way = formulas::under_way(2, of.micro_batches, stage);
    EXPECT_GE(piped.peaks[stage][Category::activations], under_way * of_layers - of_layers / 8) << stage;
    EXPECT_LT(piped.peaks[stage][Category::activations], (under_way + 1) * of_layers) << stage;
  }
}

TEST(PipelineTraining, IsAllThatPipelinesDo) {
  const ModelCase of = cases()[0];
  const BatchData data(of);
  run_ranks(2, [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), Layout::parse("pp=2"));
    Model model(rank, mesh, {.config = of.config});
    model.parameters().fill_fresh(of.config.layers, 0);
    EXPECT_EQ(refused_text([&] { model.evaluate(data.view(of)); }), "a model of 2 pipeline stages can't evaluate yet");
    EXPECT_EQ(refused_text([&] { model.prefill(data.ids, {}); }), "a model of 2 pipeline stages can't generate yet");
  });
}

}  // namespace
}  // namespace tsprun::detail::test::pipeline_training_test
