// A model whose layers are unlike: two steps under layouts of every kind against the reference, which shares no code with any,
// and a training that goes on under another layout. What its ranks receive and hold is in layouts_audit_test.cpp.
#include "layers/checkpoints/checkpoint.h"
#include "layers/layout/check_layout.h"
#include "layers/theory/flows.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"
#include "tests/reference/model.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::test::unlike_layers_test {
namespace {

constexpr std::uint64_t kSteps = 2;

/// What two steps make of a model: each step's loss and norm, the first gradients, the weights before and after.
struct Steps {
  std::vector<double> losses, norms;
  Tensors before, gradients, after;
};

ModelCase unlike_case(std::size_t kv_heads, Recompute recompute) {
  return {.config = small_unlike_config(kv_heads), .batch = 4, .sequence = 13, .recompute = recompute};
}

/// Runs the steps from the first, or those after `from`. `save_to` gets the first step.
Steps train(const ModelCase& of, const Layout& layout, const std::optional<FoundCheckpoint>& from = {},
            const std::optional<std::filesystem::path>& save_to = {}) {
  Steps found;
  const BatchData data(of);
  std::mutex mutex;
  run_ranks(layout.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), layout);
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .recompute = of.recompute, .training = true});
    const auto take = [&](std::span<const ParameterPart> parts, Tensor ParameterPart::*member, Tensors& whole) {
      for (const ParameterPart& part : parts) collect(rank, part.plan, part.*member, whole, mutex);
    };
    const ParameterStore& store = model.parameters();
    if (from) {
      load_checkpoint(rank, context.world(), model.parameters(), *from);
    } else {
      model.parameters().fill_fresh(of.config.layers, of.seed);
      disturb(model.parameters());
      model.parameters().begin_optimizer();
    }
    take(store.parts(), &ParameterPart::value, found.before);
    for (std::uint64_t step = from ? from->state.step + 1 : 1; step <= kSteps; ++step) {
      const Loss loss = model.forward_backward(data.view(of));
      const double norm = model.gradient_norm();
      if (step == 1) take(store.states(), &ParameterPart::gradient, found.gradients);
      model.update({.learning_rate = 1e-2, .step = step}, norm);
      if (rank.rank() == 0) {
        found.losses.push_back(loss.mean);
        found.norms.push_back(norm);
      }
      if (!save_to || step != 1) continue;
      CheckpointState state;
      state.step = step;
      state.dtype = of.dtype;
      state.layout = layout;
      save_checkpoint(rank, context.world(), model.parameters(), of.config, state, *save_to);
    }
    take(store.parts(), &ParameterPart::value, found.after);
  });
  return found;
}

/// The same steps of the reference, from these weights.
Steps reference_steps(const ModelCase& of, const Tensors& weights) {
  Steps expected{.losses = {}, .norms = {}, .before = weights, .gradients = {}, .after = weights};
  const BatchData data(of);
  reference::AdamWState<double> state;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const auto result = reference::model<double>(of.config, of.batch, of.sequence, expected.after, data.ids, data.labels, true,
                                                 {.training = true, .seed = of.seed, .step = kTestStep});
    expected.losses.push_back(result.loss);
    if (step == 1) expected.gradients = result.gradients;
    expected.norms.push_back(reference::adamw_step(of.config, {.learning_rate = 1e-2}, state, expected.after, result.gradients));
  }
  return expected;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12 * std::abs(expected[i])) << where;
}

TEST(UnlikeLayers, TrainAsTheReferenceDoes) {
  std::size_t number = 0;
  for (const Layout& layout :
       each_axis(4, {Layout::tsp(1), Layout::parse("tp=2").with(TensorExchange::sequence),
                     Layout::parse("sp=2").with(SequenceExchange::ulysses), Layout::parse("zero3=3"), Layout::parse("tp=2,tsp=2"),
                     Layout::parse("tp=2,sp=2").with(SequenceExchange::ring)})) {
    const ModelCase of = unlike_case(number % 2 == 0 ? 2 : 4, static_cast<Recompute>(number % 3));
    ++number;
    const std::string where = layout.label();
    const Steps found = train(of, layout);
    const Steps expected = reference_steps(of, found.before);
    expect_near(found.losses, expected.losses, where);
    expect_near(found.norms, expected.norms, where);
    expect_close(found.gradients, expected.gradients, 1e-12, where);
    expect_close(found.after, expected.after, 1e-12, where);
  }
}

/// Layers that take k and v of others, under every way to move these, in every recomputation mode.
TEST(LentKeys, TrainAsTheReferenceDoes) {
  std::size_t number = 0;
  for (const Layout& layout :
       each_axis(4, {Layout::tsp(1), Layout::tsp(2), Layout::parse("sp=2"), Layout::parse("tp=2").with(TensorExchange::sequence),
                     Layout::parse("sp=2").with(SequenceExchange::ring), Layout::parse("sp=2").with(SequenceExchange::ulysses),
                     Layout::parse("zero3=3"), Layout::parse("tp=2,tsp=2"), Layout::parse("dp=2,tsp=2").with(DataSharing::zero3),
                     Layout::parse("tp=2,sp=2").with(SequenceExchange::ring),
                     Layout::parse("tp=2,sp=2").with(SequenceExchange::ulysses)})) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      ModelCase of = unlike_case(number % 2 == 0 ? 2 : 4, recompute);
      of.config = small_lending_config(number % 2 == 0 ? 2 : 4, number % 3 == 0);
      if (4 / layout.data() % 2 == 0) of.micro_batches = number % 2 + 1;
      ++number;
      const std::string where = layout.label() + ", recompute " + std::to_string(static_cast<int>(recompute));
      const Steps found = train(of, layout);
      const Steps expected = reference_steps(of, found.before);
      expect_near(found.losses, expected.losses, where);
      expect_near(found.norms, expected.norms, where);
      expect_close(found.gradients, expected.gradients, 1e-12, where);
      expect_close(found.after, expected.after, 1e-12, where);
    }
  }
}

/// Under Ulysses k and v that are lent, and the sums of their gradients, change ranks once, whatever is computed again.
TEST(LentKeys, AreExchangedForHeadsOnce) {
  constexpr int kRanks = 4;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    ModelCase of = unlike_case(8, recompute);
    of.config = small_config(16, 5, 8, 8, 4, 13, 17);
    std::vector<LayerSpec> specs(5);
    specs[0].query_key_norm = specs[2].query_key_norm = QueryKeyNorm::heads;
    specs[2].layers_to_lender = 2;
    specs[4].layers_to_lender = 1;
    of.config.specs = LayerSpecs(specs);
    of.sequence = 16;
    const auto number = [&](auto holds) {
      return of.config.specs.sum(0, of.config.layers,
                                 [&](const LayerSpec& layer) { return std::uint64_t{holds(layer) ? 1U : 0U}; });
    };
    const std::uint64_t layers = of.config.layers;
    const std::uint64_t own = number([](const LayerSpec& layer) { return layer.projects_keys(); });
    const std::uint64_t kept = number([](const LayerSpec& layer) { return layer.lends; });
    ASSERT_LT(own, layers);
    ASSERT_GT(own, kept);
    const std::uint64_t each = of.batch * of.sequence * of.config.query_heads * of.config.head_dim * (kRanks - 1) / kRanks * 8;
    std::uint64_t backward = 2 * layers + 2 * own;  // dO, dQ; dK, dV
    if (recompute == Recompute::selective) backward += layers + 2 * (own - kept);
    if (recompute == Recompute::full) backward += 2 * layers + 2 * (own - kept);
    const Layout layout = Layout::parse("sp=4").with(SequenceExchange::ulysses);
    const ModelRun run = run_model(of, layout);
    theory::Traffic moved;
    for (const TrafficCounters& rank : run.forward) moved.forward += theory::PurposeBytes::received(rank);
    for (const TrafficCounters& rank : run.backward) moved.backward += theory::PurposeBytes::received(rank);
    EXPECT_EQ(moved.forward[Purpose::activations], (2 * layers + 2 * own) * each);
    EXPECT_EQ(moved.backward[Purpose::activations], backward * each);
    const theory::Traffic flows = theory::sum(theory::step_flows(of.setting(), layout));
    EXPECT_EQ(flows.forward[Purpose::activations], moved.forward[Purpose::activations]);
    EXPECT_EQ(flows.backward[Purpose::activations], moved.backward[Purpose::activations]);
    expect_counted(run, of.describe());
    for (std::size_t rank = 0; rank < run.peaks.size(); ++rank) EXPECT_EQ(run.peaks[rank], run.forecast[rank]) << rank;
  }
}

/// Whoever takes k and v must be on the stage that computes them.
TEST(LentKeys, CrossNoBoundaryOfStages) {
  ModelConfig config = small_lending_config(4);
  const auto why = [&](const char* layout) {
    return why_uncut({.model = config, .batch = 4, .sequence = 8}, Layout::parse(layout));
  };
  EXPECT_EQ(
      why("pp=2"),
      "pp=2: layer 4 takes keys and values of layer 2, which is on another stage, and stages don't send those to each other; "
      "try --layout tsp=1");
  EXPECT_NE(why("pp=2,tsp=2").find("try --layout tsp=2"), std::string::npos) << why("pp=2,tsp=2");
  std::vector<LayerSpec> layers(6);
  layers[1].layers_to_lender = 1;
  layers[5].layers_to_lender = 2;
  config.layers = 6;
  config.specs = LayerSpecs(layers);
  EXPECT_EQ(why("pp=2"), "");
  EXPECT_NE(why("pp=3").find("try pp=2"), std::string::npos) << why("pp=3");
}

TEST(LentKeys, AreTrainedInAPipelineWhoseStagesHaveTheirLenders) {
  ModelCase of = unlike_case(4, Recompute::selective);
  std::vector<LayerSpec> layers(6);
  layers[2].layers_to_lender = 1;
  layers[5].layers_to_lender = 2;
  of.config = small_config(16, 6, 8, 4, 4, 13, 17);
  of.config.specs = LayerSpecs(layers);
  of.batch = 6;
  of.micro_batches = 3;
  const Steps found = train(of, Layout::parse("pp=2,tsp=2"));
  const Steps expected = reference_steps(of, found.before);
  expect_near(found.losses, expected.losses, "pp=2,tsp=2");
  expect_near(found.norms, expected.norms, "pp=2,tsp=2");
  expect_close(found.gradients, expected.gradients, 1e-12, "pp=2,tsp=2");
}

/// Trains a step under TSP, and goes on under other layouts.
void expect_to_go_on(const ModelCase& of) {
  const TemporaryFolder folder;
  const Steps whole = train(of, Layout::tsp(4), std::nullopt, folder.path());
  std::vector<std::string> skipped;
  const FoundCheckpoint found = find_checkpoint(folder.path(), skipped);
  for (const Layout& layout :
       {Layout::tsp(4), Layout::parse("tp=2").with(TensorExchange::sequence), Layout::parse("zero3=3"), Layout::tsp(1)}) {
    const Steps again = train(of, layout, found);
    expect_near(again.losses, {whole.losses.back()}, layout.label());
    expect_near(again.norms, {whole.norms.back()}, layout.label());
    expect_close(again.after, whole.after, 1e-12, layout.label());
  }
}

/// Returns the case with layers that have the model's sizes: the config.json of a checkpoint of this family has no others.
ModelCase with_equal_sizes(ModelCase of) {
  std::vector<LayerSpec> layers;
  for (std::size_t layer = 0; layer < of.config.layers; ++layer) {
    LayerSpec& spec = layers.emplace_back(of.config.layer(layer));
    spec.head_dim = spec.kv_heads = spec.intermediate = 0;
  }
  of.config.specs = LayerSpecs(layers);
  return of;
}

TEST(UnlikeLayers, GoOnUnderAnotherLayout) { expect_to_go_on(with_equal_sizes(unlike_case(4, Recompute::none))); }

/// With sizes, lenders, scales of outputs and inputs of layers that the family's config.json says.
TEST(LentKeys, GoOnUnderAnotherLayout) {
  for (const std::size_t inputs : {0U, 4U}) {
    ModelCase of = unlike_case(4, Recompute::none);
    of.config = small_lending_family(inputs);
    EXPECT_TRUE(of.config.lends());
    EXPECT_FALSE(of.config.has_sizes_of(of.config.layer(0)));
    expect_to_go_on(of);
  }
}

/// Checkpoints hold matrices as the family's files do.
TEST(FusedMatrices, GoOnUnderAnotherLayout) {
  expect_to_go_on({.config = as_family("phi3", small_config(16, 2, 8, 4, 4, 13, 17)), .batch = 4, .sequence = 13});
}

/// The first stage has two of the three layers; both have the embedding, and up to two micro-batches are under way.
ModelCase pipeline_case() {
  ModelCase of = unlike_case(4, Recompute::none);
  of.config = small_unlike_config(4, true);
  of.batch = 6;
  of.micro_batches = 3;
  return of;
}

TEST(UnlikeLayers, TrainInAPipeline) {
  const ModelCase of = pipeline_case();
  const Steps found = train(of, Layout::parse("pp=2,tsp=2"));
  const Steps expected = reference_steps(of, found.before);
  expect_near(found.losses, expected.losses, "pp=2,tsp=2");
  expect_near(found.norms, expected.norms, "pp=2,tsp=2");
  expect_close(found.after, expected.after, 1e-12, "pp=2,tsp=2");
}

TEST(UnlikeLayers, TrainInAPipelineAndGoOnWithoutOne) {
  const ModelCase of = with_equal_sizes(pipeline_case());
  const TemporaryFolder folder;
  const Steps found = train(of, Layout::parse("pp=2,tsp=2"), std::nullopt, folder.path());
  const Steps expected = reference_steps(of, found.before);
  expect_near(found.losses, expected.losses, "pp=2,tsp=2");
  expect_near(found.norms, expected.norms, "pp=2,tsp=2");
  expect_close(found.after, expected.after, 1e-12, "pp=2,tsp=2");
  std::vector<std::string> skipped;
  const Steps again = train(of, Layout::tsp(4), find_checkpoint(folder.path(), skipped));
  expect_near(again.losses, {expected.losses.back()}, "tsp=4");
  expect_near(again.norms, {expected.norms.back()}, "tsp=4");
  expect_close(again.after, expected.after, 1e-12, "tsp=4");
}

}  // namespace
}  // namespace tsprun::detail::test::unlike_layers_test
