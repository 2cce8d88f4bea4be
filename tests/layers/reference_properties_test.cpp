// What must hold for the reference by definition, whatever its code: causality, independent sequences, unlabelled tokens,
// relative positions, the optimizer's rules, refusals.
#include "tests/layers/reference_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

namespace tsprun::detail::reference_properties_test {
namespace {

using test::normal_values;
using test::random_ids;
using test::random_weights;
using test::reference_cases;
using test::reference_config;
using test::ReferenceCase;
using Values = std::vector<double>;

Values row(const Values& values, std::size_t index, std::size_t width) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(index * width);
  return {first, first + static_cast<std::ptrdiff_t>(width)};
}

TEST(ReferenceBlock, TokensSeeThemselvesAndEarlierOnesOfTheirSequence) {
  const ModelConfig config = reference_config(8, 1, 4, 2, 6);
  const std::size_t batch = 2;
  const std::size_t sequence = 6;
  std::mt19937 generator(1);
  const auto weights = random_weights<double>(block_parameters(config, 0), generator);
  Values x = normal_values<double>(batch * sequence * config.hidden, 1, generator);
  const Values before = reference::block(config, batch, sequence, weights, x).y;
  const std::size_t changed = sequence + 3;  // token 3 of sequence 1
  x[changed * config.hidden + 2] += 0.5;
  const Values after = reference::block(config, batch, sequence, weights, x).y;
  for (std::size_t token = 0; token < batch * sequence; ++token) {
    const bool same = row(before, token, config.hidden) == row(after, token, config.hidden);
    EXPECT_EQ(same, token < changed) << "token " << token;
  }
}

TEST(ReferenceBlock, SequencesOfABatchAreComputedAsIfAlone) {
  const ReferenceCase c = reference_cases()[1];
  std::mt19937 generator(c.seed);
  const auto weights = random_weights<double>(block_parameters(c.config, 0), generator);
  const std::size_t width = c.sequence * c.config.hidden;
  const Values x = normal_values<double>(c.batch * width, 1, generator);
  const Values dy = normal_values<double>(c.batch * width, 1, generator);
  const auto together = reference::block(c.config, c.batch, c.sequence, weights, x, dy);
  for (std::size_t b = 0; b < c.batch; ++b) {
    const auto alone = reference::block(c.config, 1, c.sequence, weights, row(x, b, width), row(dy, b, width));
    EXPECT_EQ(row(together.y, b, width), alone.y);
    EXPECT_EQ(row(together.dx, b, width), alone.dx);
  }
}

TEST(ReferenceBlock, SinglePrecisionIsNearDouble) {
  for (const ReferenceCase& c : reference_cases()) {
    SCOPED_TRACE(c.seed);
    std::mt19937 generator(c.seed);
    const auto weights = random_weights<float>(block_parameters(c.config, 0), generator);
    const std::size_t count = c.batch * c.sequence * c.config.hidden;
    const auto x = normal_values<float>(count, 1, generator);
    const auto dy = normal_values<float>(count, 1, generator);
    const auto f32 = reference::block(c.config, c.batch, c.sequence, weights, x, dy);
    const auto f64 = reference::block(c.config, c.batch, c.sequence, test::converted<double>(weights), test::converted<double>(x),
                                      test::converted<double>(dy));
    const double largest = test::largest_norm(f64.gradients);
    test::expect_close("y", f32.y, f64.y, 2e-6);
    test::expect_close("dx", f32.dx, f64.dx, 2e-6);
    for (const auto& [name, values] : f64.gradients) test::expect_close(name, f32.gradients.at(name), values, 2e-5, largest);
  }
}

// By hand, x of one head of 4 at positions 0 and 1, θ = 100: pairs (0, 2) and (1, 3) turn by 1 and by 100^(−1/2) = 0.1.
TEST(ReferenceRope, PairsElementsHalfAHeadApart) {
  const Values turned = reference::rope<double>({1, 0, 0, 0, 1, 0, 0, 2}, 2, 1, 4, {.theta = 100});
  const Values expected = {1, 0, 0, 0, std::cos(1.0), -2 * std::sin(0.1), std::sin(1.0), 2 * std::cos(0.1)};
  test::expect_close("rope", turned, expected, 1e-15);
}

// The same numbers with neighbours as pairs, (0, 1) and (2, 3), and with the first pair alone, which turns by 1.
TEST(ReferenceRope, PairsNeighboursAndLeavesTheRest) {
  const Values x = {1, 0, 0, 0, 1, 0, 0, 2};
  const Values neighbours = reference::rope<double>(x, 2, 1, 4, {.theta = 100, .interleaved = true});
  test::expect_close("rope", neighbours, Values{1, 0, 0, 0, std::cos(1.0), std::sin(1.0), -2 * std::sin(0.1), 2 * std::cos(0.1)},
                     1e-15);
  const Values part = reference::rope<double>(x, 2, 1, 4, {.theta = 100, .dims = 2});
  test::expect_close("rope", part, Values{1, 0, 0, 0, std::cos(1.0), std::sin(1.0), 0, 2}, 1e-15);
}

TEST(ReferenceRope, ScoresDependOnDistancesAlone) {
  std::mt19937 generator(3);
  const Values q = normal_values<double>(8, 1, generator);
  const Values k = normal_values<double>(8, 1, generator);
  const auto score = [&](std::size_t query_position, std::size_t key_position) {
    const auto at = [](const Values& vector, std::size_t position) {
      Values sequence(16 * 8);
      std::copy(vector.begin(), vector.end(), sequence.begin() + static_cast<std::ptrdiff_t>(position * 8));
      return row(reference::rope(sequence, 16, 1, 8, {}), position, 8);
    };
    const Values a = at(q, query_position);
    const Values b = at(k, key_position);
    double sum = 0;
    for (std::size_t i = 0; i < 8; ++i) sum += a[i] * b[i];
    return sum;
  };
  EXPECT_NEAR(score(5, 2), score(15, 12), 1e-13);
  EXPECT_GT(std::abs(score(5, 2) - score(5, 3)), 1e-3);
}

// With queries of zero every visible token weighs the same.
TEST(ReferenceAttention, AveragesTheValuesOfItsGroupsHead) {
  const reference::AttentionSizes sizes{1, 3, 4, 2, 1};
  const Values values = {1, 10, 2, 20, 6, 60};
  const auto result = reference::attention(Values(12), Values(6, 1.0), values, sizes);
  test::expect_close("output", result.output, Values{1, 1, 10, 10, 1.5, 1.5, 15, 15, 3, 3, 30, 30}, 1e-15);
}

TEST(ReferenceModel, LossIsTheMeanOverLabelledTokens) {
  const ModelConfig config = reference_config(8, 1, 2, 1, 4);
  std::mt19937 generator(7);
  const auto weights = random_weights<double>(model_parameters(config), generator);
  const auto ids = random_ids(5, config.vocabulary, generator);
  const auto loss = [&](const std::vector<std::int64_t>& labels) {
    return reference::model<double>(config, 1, 5, weights, ids, labels, false).loss;
  };
  EXPECT_NEAR(loss({-1, 4, -1, -1, 9}), (loss({-1, 4, -1, -1, -1}) + loss({-1, -1, -1, -1, 9})) / 2, 1e-15);

  const auto none = reference::model<double>(config, 1, 5, weights, ids, std::vector<std::int64_t>(5, -1));
  EXPECT_EQ(none.loss, 0);
  EXPECT_EQ(test::largest_norm(none.gradients), 0);

  // Tokens after the last label have no say.
  const std::vector<std::int64_t> early = {-1, 4, -1, -1, -1};
  auto other_ids = ids;
  other_ids[4] = (ids[4] + 1) % static_cast<std::int32_t>(config.vocabulary);
  EXPECT_EQ(reference::model<double>(config, 1, 5, weights, other_ids, early, false).loss, loss(early));
}

TEST(ReferenceModel, AHeadOfZerosLosesLogarithmOfVocabulary) {
  const ModelConfig config = reference_config(8, 2, 2, 1, 4);
  std::mt19937 generator(8);
  auto weights = random_weights<double>(model_parameters(config), generator);
  std::fill(weights.at("lm_head.weight").begin(), weights.at("lm_head.weight").end(), 0.0);
  const auto ids = random_ids(6, config.vocabulary, generator);
  EXPECT_NEAR(reference::model<double>(config, 2, 3, weights, ids, std::vector<std::int64_t>(6, 3), false).loss,
              std::log(static_cast<double>(config.vocabulary)), 1e-14);
}

TEST(ReferenceModel, TiedGradientIsTheSumOfBothUses) {
  ModelConfig config = reference_config(8, 2, 4, 2, 4, true);
  std::mt19937 generator(9);
  auto weights = random_weights<double>(model_parameters(config), generator);
  const auto ids = random_ids(8, config.vocabulary, generator);
  const auto labels = test::random_labels(8, config.vocabulary, generator);
  const auto tied = reference::model<double>(config, 2, 4, weights, ids, labels);
  config.tied_embeddings = false;
  weights["lm_head.weight"] = weights.at("model.embed_tokens.weight");
  const auto untied = reference::model<double>(config, 2, 4, weights, ids, labels);
  EXPECT_EQ(tied.loss, untied.loss);
  Values sum = untied.gradients.at("model.embed_tokens.weight");
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += untied.gradients.at("lm_head.weight")[i];
  EXPECT_GT(test::norm(untied.gradients.at("model.embed_tokens.weight")), 0);
  test::expect_close("tied", tied.gradients.at("model.embed_tokens.weight"), sum, 1e-14);
}

TEST(ReferenceModel, GreedyTextIsTheLikeliestTokenOfEachPosition) {
  const ModelConfig config = reference_config(12, 2, 4, 2, 4);
  std::mt19937 generator(10);
  const auto weights = random_weights<double>(model_parameters(config), generator);
  const auto prompt = random_ids(3, config.vocabulary, generator);
  const auto text = reference::generate_greedily<double>(config, weights, prompt, 6);
  ASSERT_EQ(text.size(), 6U);
  // One pass over prompt and text says the same of every position, for attention is causal.
  std::vector<std::int32_t> all = prompt;
  all.insert(all.end(), text.begin(), text.end());
  const auto once =
      reference::model<double>(config, 1, all.size(), weights, all, std::vector<std::int64_t>(all.size(), -1), false);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Values logits = row(once.logits, prompt.size() - 1 + i, config.vocabulary);
    EXPECT_EQ(text[i], std::max_element(logits.begin(), logits.end()) - logits.begin()) << i;
  }
}

TEST(ReferenceModel, RefusesWhatDoesNotFit) {
  const ModelConfig config = reference_config(8, 1, 2, 1, 4);
  std::mt19937 generator(11);
  auto weights = random_weights<double>(model_parameters(config), generator);
  const auto run = [&](const std::vector<std::int32_t>& ids, const std::vector<std::int64_t>& labels) {
    return reference::model<double>(config, 1, 2, weights, ids, labels).loss;
  };
  EXPECT_REFUSED(run({1}, {1, 1}), "1 ids", "2");
  EXPECT_REFUSED(run({1, 19}, {1, 1}), "ids", "19");
  EXPECT_REFUSED(run({1, -1}, {1, 1}), "ids", "-1");
  EXPECT_REFUSED(run({1, 1}, {1, 19}), "labels", "19");
  EXPECT_REFUSED(run({1, 1}, {1, -2}), "labels", "-2");
  EXPECT_REFUSED(reference::block(config, 1, 2, weights, Values(8)), "x has 8", "16");
  weights["model.norm.weight"].pop_back();
  EXPECT_REFUSED(run({1, 1}, {1, 1}), "model.norm.weight", "7", "8");
  weights.erase("model.layers.0.mlp.up_proj.weight");
  EXPECT_REFUSED(run({1, 1}, {1, 1}), "model.layers.0.mlp.up_proj.weight");
}

/// A model's weights and gradients, every element the same.
struct Uniform {
  explicit Uniform(bool tied) : config(reference_config(4, 1, 2, 1, 2, tied)) {
    for (const Parameter& parameter : model_parameters(config)) {
      elements += parameter.elements();
      weights[parameter.name].assign(parameter.elements(), 2.0);
      gradients[parameter.name].assign(parameter.elements(), -0.5);
    }
  }
  ModelConfig config;
  std::size_t elements = 0;
  reference::Tensors<double> weights;
  reference::Tensors<double> gradients;
};

TEST(ReferenceAdamW, DecaysMatricesAloneAndCountsTiedWeightsOnce) {
  for (const bool tied : {false, true}) {
    Uniform u(tied);
    reference::AdamWState<double> state;
    const reference::AdamWOptions options{.learning_rate = 0.1, .weight_decay = 0.5, .clip = 0};
    const double norm = reference::adamw_step(u.config, options, state, u.weights, u.gradients);
    EXPECT_NEAR(norm, 0.5 * std::sqrt(static_cast<double>(u.elements)), 1e-12);
    // The first step of Adam is the learning rate against the gradient's sign: m̂ = g, √v̂ = |g|.
    EXPECT_NEAR(u.weights.at("model.norm.weight")[0], 2.1, 1e-8);
    EXPECT_NEAR(u.weights.at("model.embed_tokens.weight")[0], 2 - 0.1 * 0.5 * 2 + 0.1, 1e-8);
  }
}

// Two steps by hand: g = 0.1, then 0.3, β1 = 0.5, β2 = 0.75.
TEST(ReferenceAdamW, CorrectsTheBiasOfItsMoments) {
  Uniform u(false);
  reference::AdamWState<double> state;
  const reference::AdamWOptions options{
      .learning_rate = 1, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 0, .weight_decay = 0, .clip = 0};
  double expected = 2 - 1;
  for (const double g : {0.1, 0.3}) {
    for (auto& [name, values] : u.gradients) std::fill(values.begin(), values.end(), g);
    reference::adamw_step(u.config, options, state, u.weights, u.gradients);
  }
  const double m = (0.5 * 0.05 + 0.5 * 0.3) / 0.75;
  const double v = (0.75 * 0.25 * 0.01 + 0.25 * 0.09) / (1 - 0.75 * 0.75);
  expected -= m / std::sqrt(v);
  for (const auto& [name, values] : u.weights) EXPECT_NEAR(values.front(), expected, 1e-13) << name;
}

// Adam's step doesn't see a gradient's scale, but its moments do.
TEST(ReferenceAdamW, ClipsByTheNormOfAllGradients) {
  Uniform u(false);
  reference::AdamWState<double> state;
  const double norm = reference::adamw_step(u.config, {.clip = 0.25}, state, u.weights, u.gradients);
  EXPECT_NEAR(state.m.at("model.norm.weight")[0], 0.1 * -0.5 * 0.25 / (norm + 1e-6), 1e-15);
  Uniform small(false);
  reference::AdamWState<double> unclipped;
  reference::adamw_step(small.config, {.clip = 1e6}, unclipped, small.weights, small.gradients);
  EXPECT_NEAR(unclipped.m.at("model.norm.weight")[0], 0.1 * -0.5, 1e-15);
}

}  // namespace
}  // namespace tsprun::detail::reference_properties_test
