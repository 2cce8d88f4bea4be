// Fresh weights: the generator against its authors' vectors, the distribution, and independence of how a tensor is cut.
#include "layers/parameters/init.h"
#include "layers/io/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace tsprun::detail::init_test {
namespace {

using Words4 = std::array<std::uint32_t, 4>;

TEST(Philox, GivesItsAuthorsKnownAnswers) {
  // kat_vectors of Random123, philox4x32 with 10 rounds.
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}), (Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Words4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(philox(0x299f31d0a4093822U, 0x85a308d3243f6a88U, 0x0370734413198a2eU),
            (std::array<std::uint64_t, 2>{0x94fdccebd16cfe09U, 0x24126ea15001e420U}));
}

TEST(NormalPair, IsBoxAndMullersByTheMathLibrary) {
  for (std::uint64_t pair = 0; pair < 20'000; ++pair) {
    const auto words = philox(3, pair, 17);
    const double u = (static_cast<double>(words[0] >> 11) + 1) * 0x1p-53;
    const double t = static_cast<double>(words[1] >> 11) * 0x1p-53;
    const double radius = std::sqrt(-2 * std::log(u));
    const auto [first, second] = normal_pair(3, 17, pair);
    EXPECT_NEAR(first, radius * std::cos(2 * std::numbers::pi * t), 1e-14);
    EXPECT_NEAR(second, radius * std::sin(2 * std::numbers::pi * t), 1e-14);
  }
}

TEST(NormalPair, HasTheMomentsOfANormalDistribution) {
  constexpr int kPairs = 500'000;
  double sum1 = 0;
  double sum2 = 0;
  double sum3 = 0;
  double sum4 = 0;
  double product = 0;
  for (int i = 0; i < kPairs; ++i) {
    const auto [a, b] = normal_pair(1, name_hash("w"), static_cast<std::uint64_t>(i));
    for (const double x : {a, b}) {
      sum1 += x;
      sum2 += x * x;
      sum3 += x * x * x;
      sum4 += x * x * x * x;
    }
    product += a * b;
  }
  // Five standard errors each.
  constexpr double kCount = 2.0 * kPairs;
  EXPECT_NEAR(sum1 / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(sum2 / kCount, 1, 5 * std::sqrt(2 / kCount));
  EXPECT_NEAR(sum3 / kCount, 0, 5 * std::sqrt(15 / kCount));
  EXPECT_NEAR(sum4 / kCount, 3, 5 * std::sqrt(96 / kCount));
  EXPECT_NEAR(product / kPairs, 0, 5 / std::sqrt(kCount / 2));
}

TEST(FreshWeights, DontDependOnHowTheTensorIsCut) {
  const Parameter parameter{"w", ParameterRole::up, 0, {7, 9}};
  std::vector<double> whole(63);
  fill_fresh(parameter, 2, 42, {0, 7, 0, 9}, std::span(whole));
  for (std::size_t row = 0; row < 7; ++row) {
    for (std::size_t rows = 0; row + rows <= 7; ++rows) {
      for (std::size_t column = 0; column < 9; ++column) {
        for (std::size_t columns = 0; column + columns <= 9; ++columns) {
          std::vector<double> part(rows * columns);
          fill_fresh(parameter, 2, 42, {row, rows, column, columns}, std::span(part));
          for (std::size_t i = 0; i < part.size(); ++i) {
            ASSERT_EQ(part[i], whole[(row + i / columns) * 9 + column + i % columns]);
          }
        }
      }
    }
  }
}

TEST(FreshWeights, AreTheSameNumbersInEveryElementType) {
  const Parameter parameter{"w", ParameterRole::query, 0, {4, 5}};
  std::vector<double> wide(20);
  std::vector<float> single(20);
  std::vector<bf16> narrow(20);
  fill_fresh(parameter, 2, 1, {0, 4, 0, 5}, std::span(wide));
  fill_fresh(parameter, 2, 1, {0, 4, 0, 5}, std::span(single));
  fill_fresh(parameter, 2, 1, {0, 4, 0, 5}, std::span(narrow));
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(single[i], static_cast<float>(wide[i]));
    EXPECT_EQ(narrow[i], bf16_from(wide[i]));
  }
}

TEST(FreshWeights, HaveTheSpecifiedDeviations) {
  const ModelConfig config = find_config("micro").config;  // 4 layers: √(2L) = √8
  for (const Parameter& parameter : model_parameters(config)) {
    if (parameter.layer > 0) continue;
    std::vector<float> values(parameter.elements());
    fill_fresh(parameter, config.layers, 0, {0, parameter.rows(), 0, parameter.columns()}, std::span(values));
    if (!parameter.is_matrix()) {
      for (const float value : values) ASSERT_EQ(value, 1.0F) << parameter.name;
      continue;
    }
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    const bool last = parameter.role == ParameterRole::output || parameter.role == ParameterRole::down;
    const double expected = last ? 0.02 / std::sqrt(8.0) : 0.02;
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), expected, 0.02 * expected) << parameter.name;
  }
}

TEST(FreshWeights, OfAGainThatIsOnePlusTheWeightAreZero) {
  ModelConfig config = find_config("micro").config;
  config.become(model_type("gemma"));
  for (const Parameter& parameter : model_parameters(config)) {
    if (parameter.is_matrix()) continue;
    std::vector<float> values(parameter.elements(), 3);
    fill_fresh(parameter, config.layers, 0, {0, 1, 0, parameter.columns()}, std::span(values));
    for (const float value : values) ASSERT_EQ(value, 0.0F) << parameter.name;
  }
}

TEST(FreshWeights, DifferBySeedAndName) {
  const auto draw = [](const char* name, std::uint64_t seed) {
    std::vector<double> values(10);
    fill_fresh({name, ParameterRole::up, 0, {2, 5}}, 1, seed, {0, 2, 0, 5}, std::span(values));
    return values;
  };
  EXPECT_EQ(draw("a", 1), draw("a", 1));
  EXPECT_NE(draw("a", 1), draw("b", 1));
  EXPECT_NE(draw("a", 1), draw("a", 2));
}

}  // namespace
}  // namespace tsprun::detail::init_test
