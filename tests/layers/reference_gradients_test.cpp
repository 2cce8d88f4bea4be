// The reference's gradients against central differences of its own forward pass in f64: every tensor along a random direction and
// in single elements. Its forward pass has an outside witness, PyTorch.
#include "tests/layers/reference_support.h"

#include <gtest/gtest.h>

#include <functional>

namespace tsp {
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

TEST(ReferenceBlock, GradientsAreFiniteDifferences) {
  for (const ReferenceCase& c : reference_cases()) {
    SCOPED_TRACE(c.seed);
    std::mt19937 generator(c.seed);
    auto weights = random_weights<double>(block_parameters(c.config, 0), generator);
    const std::size_t count = c.batch * c.sequence * c.config.hidden;
    Values x = normal_values<double>(count, 1, generator);
    const Values dy = normal_values<double>(count, 1, generator);
    const auto loss = [&] { return dot(reference::block(c.config, c.batch, c.sequence, weights, x).y, dy); };

    const auto result = reference::block(c.config, c.batch, c.sequence, weights, x, dy);
    const double scale = std::max(test::norm(result.dx), test::largest_norm(result.gradients));
    expect_gradient("x", x, result.dx, scale, generator, loss);
    ASSERT_EQ(result.gradients.size(), weights.size());
    for (auto& [name, values] : weights) expect_gradient(name, values, result.gradients.at(name), scale, generator, loss);
  }
}

TEST(ReferenceModel, GradientsAreFiniteDifferences) {
  for (const ReferenceCase& c : reference_cases()) {
    SCOPED_TRACE(c.seed);
    std::mt19937 generator(c.seed);
    auto weights = random_weights<double>(model_parameters(c.config), generator);
    const auto ids = test::random_ids(c.batch * c.sequence, c.config.vocabulary, generator);
    const auto labels = test::random_labels(c.batch * c.sequence, c.config.vocabulary, generator);
    const auto loss = [&] { return reference::model<double>(c.config, c.batch, c.sequence, weights, ids, labels, false).loss; };

    const auto result = reference::model<double>(c.config, c.batch, c.sequence, weights, ids, labels);
    const double scale = test::largest_norm(result.gradients);
    ASSERT_EQ(result.gradients.size(), weights.size());
    for (auto& [name, values] : weights) expect_gradient(name, values, result.gradients.at(name), scale, generator, loss);
  }
}

}  // namespace
}  // namespace tsp
