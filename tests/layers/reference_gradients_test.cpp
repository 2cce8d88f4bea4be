// The reference's gradients against central differences of its own forward pass in f64: every tensor along a random direction and
// in single elements. Its forward pass has an outside witness, PyTorch.
#include "tests/layers/norm_places.h"
#include "tests/layers/reference_support.h"
#include "tests/layers/unlike_layers.h"

#include <gtest/gtest.h>

#include <functional>

namespace tsprun::detail::reference_gradients_test {
namespace {

using test::normal_values;
using test::random_weights;
using test::reference_cases;
using test::ReferenceCase;
using Values = std::vector<double>;

constexpr double kStep = 1e-5;
// Truncation and rounding of central differences with that step stay below 1e-9 of the loss' scale.
constexpr double kTolerance = 1e-7;

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The slope of `loss` along `direction` at `x`.
double slope(Values& x, const Values& direction, const std::function<double()>& loss) {
  const Values here = x;
  const auto at = [&](double step) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = here[i] + step * direction[i];
    return loss();
  };
  const double difference = at(kStep) - at(-kStep);
  x = here;
  return difference / (2 * kStep);
}

/// Holds `gradient` against slopes of `loss` in `x`. `scale`: the norm of the largest gradient of the case.
void expect_gradient(const std::string& what, Values& x, const Values& gradient, double scale, std::mt19937& generator,
                     const std::function<double()>& loss) {
  ASSERT_EQ(gradient.size(), x.size()) << what;
  Values direction = normal_values<double>(x.size(), 1, generator);
  const double length = test::norm(direction);
  for (double& element : direction) element /= length;
  EXPECT_NEAR(slope(x, direction, loss), dot(gradient, direction), kTolerance * scale) << what << ", a random direction";
  for (int i = 0; i < 3; ++i) {
    const std::size_t element = generator() % x.size();
    Values unit(x.size());
    unit[element] = 1;
    EXPECT_NEAR(slope(x, unit, loss), gradient[element], kTolerance * scale) << what << ", element " << element;
  }
}

void expect_block_gradients(const ReferenceCase& c, const reference::DropoutDraw& draw) {
  SCOPED_TRACE(c.seed);
  std::mt19937 generator(c.seed);
  auto weights = random_weights<double>(block_parameters(c.config, 0), generator);
  const std::size_t count = c.batch * c.sequence * c.config.hidden;
  Values x = normal_values<double>(count, 1, generator);
  const Values dy = normal_values<double>(count, 1, generator);
  const auto forward = [&] { return reference::block_forward(c.config, 0, c.batch, c.sequence, weights, x, draw); };
  const auto loss = [&] { return dot(forward().y, dy); };

  auto gradients = reference::zeros<double>(block_parameters(c.config, 0));
  const Values dx = reference::block_backward(c.config, 0, weights, forward(), dy, gradients);
  const double scale = std::max(test::norm(dx), test::largest_norm(gradients));
  expect_gradient("x", x, dx, scale, generator, loss);
  ASSERT_EQ(gradients.size(), weights.size());
  for (auto& [name, values] : weights) expect_gradient(name, values, gradients.at(name), scale, generator, loss);
}

void expect_model_gradients(const ReferenceCase& c, const reference::DropoutDraw& draw) {
  SCOPED_TRACE(c.seed);
  std::mt19937 generator(c.seed);
  auto weights = random_weights<double>(model_parameters(c.config), generator);
  const auto ids = test::random_ids(c.batch * c.sequence, c.config.vocabulary, generator);
  const auto labels = test::random_labels(c.batch * c.sequence, c.config.vocabulary, generator);
  const auto loss = [&] {
    return reference::model<double>(c.config, c.batch, c.sequence, weights, ids, labels, false, draw).loss;
  };

  const auto result = reference::model<double>(c.config, c.batch, c.sequence, weights, ids, labels, true, draw);
  const double scale = test::largest_norm(result.gradients);
  ASSERT_EQ(result.gradients.size(), weights.size());
  for (auto& [name, values] : weights) expect_gradient(name, values, result.gradients.at(name), scale, generator, loss);
}

TEST(ReferenceBlock, GradientsAreFiniteDifferences) {
  for (const ReferenceCase& c : reference_cases()) expect_block_gradients(c, {});
}

TEST(ReferenceModel, GradientsAreFiniteDifferences) {
  for (const ReferenceCase& c : reference_cases()) expect_model_gradients(c, {});
}

TEST(ReferenceModel, GradientsOfUnlikeLayersAreFiniteDifferences) {
  ReferenceCase c{test::reference_config(16, 3, 4, 2, 4), 2, 5, 7};
  c.config.specs = test::unlike_layers();
  expect_model_gradients(c, {});
}

TEST(ReferenceModel, GradientsOfLentKeysAreFiniteDifferences) {
  ReferenceCase c{test::reference_config(16, 7, 4, 2, 4), 2, 5, 7};
  c.config.specs = test::lending_layers();
  expect_model_gradients(c, {});
}

TEST(ReferenceModel, GradientsWithMultipliersAreFiniteDifferences) {
  for (ReferenceCase c : reference_cases()) {
    c.config.embedding_multiplier = 2.5;
    c.config.residual_multiplier = 0.3;
    c.config.attention_multiplier = 0.4;
    c.config.logits_multiplier = 0.6;
    c.config.logits_divisor = 1.4;
    expect_block_gradients(c, {});
    expect_model_gradients(c, {});
  }
}

/// Gains of 1 + w, also of heads, and both forms of a gate with GeLU.
TEST(ReferenceModel, GradientsOfGemmasKindAreFiniteDifferences) {
  for (ReferenceCase c : reference_cases()) {
    c.config.become(model_type("gemma"));
    c.config.specs = LayerSpec{.query_key_norm = QueryKeyNorm::heads};
    if (c.seed % 2 == 0) c.config.mlp = Mlp::geglu;
    expect_block_gradients(c, {});
    expect_model_gradients(c, {});
  }
}

/// With dropout, too, which takes the norm of a sublayer's result.
TEST(ReferenceModel, GradientsOfNormsInAllPlacesAreFiniteDifferences) {
  for (const Norm norm : {Norm::rms, Norm::layer, Norm::layer_without_bias}) {
    ReferenceCase c{test::reference_config(12, 4, 4, 2, 4), 2, 5, 8};
    c.config.type = &test::every_role();
    c.config.norm = norm;
    c.config.specs = test::unlike_norms();
    c.config.residual_dropout = 0.2;
    c.config.residual_multiplier = norm == Norm::rms ? 1 : 0.4;
    c.config.gains_from_one = norm != Norm::layer;
    expect_model_gradients(c, {});
    expect_model_gradients(c, {.training = true, .seed = 5, .step = 3});
  }
}

TEST(ReferenceGpt2, GradientsAreFiniteDifferencesWithAndWithoutDropout) {
  for (const ReferenceCase& c : test::gpt2_reference_cases()) {
    for (const reference::DropoutDraw& draw :
         {reference::DropoutDraw{}, reference::DropoutDraw{.training = true, .seed = 5, .step = 3}}) {
      expect_block_gradients(c, draw);
      expect_model_gradients(c, draw);
    }
  }
}

TEST(ReferenceGpt2, DropsOnlyInTrainingAndAnewInEveryStep) {
  const ReferenceCase c = test::gpt2_reference_cases()[1];
  std::mt19937 generator(1);
  const auto weights = random_weights<double>(model_parameters(c.config), generator);
  const auto ids = test::random_ids(c.batch * c.sequence, c.config.vocabulary, generator);
  const auto labels = test::random_labels(c.batch * c.sequence, c.config.vocabulary, generator);
  const auto loss = [&](const ModelConfig& config, const reference::DropoutDraw& draw) {
    return reference::model<double>(config, c.batch, c.sequence, weights, ids, labels, false, draw).loss;
  };
  ModelConfig without = c.config;
  without.residual_dropout = without.embedding_dropout = without.attention_dropout = 0;
  EXPECT_EQ(loss(c.config, {}), loss(without, {.training = true}));
  const double first = loss(c.config, {.training = true, .seed = 1, .step = 1});
  EXPECT_EQ(first, loss(c.config, {.training = true, .seed = 1, .step = 1}));
  EXPECT_NE(first, loss(c.config, {.training = true, .seed = 1, .step = 2}));
  EXPECT_NE(first, loss(c.config, {.training = true, .seed = 2, .step = 1}));
  EXPECT_NE(first, loss(c.config, {}));
  without.attention_dropout = 0.5;
  EXPECT_NE(loss(without, {.training = true}), loss(c.config, {})) << "of attention probabilities alone";
}

}  // namespace
}  // namespace tsprun::detail::reference_gradients_test
