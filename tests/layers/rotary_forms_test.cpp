// Every form of rotary positions: a training step under every layout against the reference, which shares no code with any; base
// by base and factor by factor against closed formulas.
#include "tests/layers/rotary_forms.h"
#include "layers/layout/rotary_tables.h"
#include "tests/layers/model_run.h"
#include "tests/reference/model.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace tsprun::detail::test::rotary_forms_test {
namespace {

using Kind = RopeScaling::Kind;

void expect_reference(const ModelCase& of, const Layout& on, const std::string& form) {
  const std::string where = form + ", " + on.label();
  SCOPED_TRACE(where);
  Tensors weights;
  const ModelRun run = run_model(of, on, &weights);
  const BatchData data(of);
  const auto expected = reference::model<double>(of.config, of.batch, of.sequence, weights, data.ids, data.labels, true, {});
  EXPECT_NEAR(run.loss, expected.loss, 1e-12 * std::abs(expected.loss)) << where;
  expect_close(run.gradients, expected.gradients, 1e-11, where);
}

// Sequences are longer than the original context of some forms and shorter than that of others.
TEST(RotaryForms, TrainAsTheReferenceDoesUnderEveryLayout) {
  const std::vector<Layout> layouts = each_axis(
      4, {Layout::tsp(1), Layout::parse("tp=2").with(TensorExchange::sequence), Layout::parse("zero3=3"),
          Layout::parse("tp=2,tsp=2"), Layout::parse("pp=2,tsp=2"), Layout::parse("tp=2,sp=2").with(SequenceExchange::ring)});
  std::size_t number = 0;
  for (const std::size_t original : {8U, 64U}) {
    for (const auto& [form, config] : rotary_forms(small_config(16, 2, 4, 2, 8, 13, 17), original)) {
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        if (original == 64 && i % 4 != 0) continue;
        ModelCase of{.config = config, .batch = 4, .sequence = 13, .recompute = static_cast<Recompute>(number++ % 3)};
        expect_reference(of, layouts[i], form);
        if (HasFailure()) return;
      }
    }
  }
}

/// Returns the table of queries or keys of a layer for tokens at positions 0, 1, …
std::vector<std::vector<double>> table_of(const ModelConfig& config, std::size_t tokens, std::size_t longest, bool of_queries,
                                          std::size_t layer = 0) {
  std::vector<std::vector<double>> rows(tokens, std::vector<double>(config.rotary_dims({})));
  run_ranks(1, [&](Context& context) {
    Rank rank(context);
    const RotaryTables tables(rank, config, DType::f64, tokens, longest);
    std::vector<std::int64_t> positions(tokens);
    for (std::size_t i = 0; i < tokens; ++i) positions[i] = static_cast<std::int64_t>(i);
    tables.fill(positions);
    const Rotations of = tables.of(config.layer(layer));
    const ConstTensor& table = of_queries ? of.queries : of.keys;
    ASSERT_EQ(table.size(1), config.rotary_dims({}));
    for (std::size_t row = 0; row < tokens; ++row) {
      for (std::size_t i = 0; i < table.size(1); ++i) rows[row][i] = table.as<double>()[row * table.size(1) + i];
    }
  });
  return rows;
}

/// Checks a table against frequencies and the factor of each position.
void expect_table(const std::vector<std::vector<double>>& table, const std::vector<double>& frequencies,
                  const std::vector<double>& factors) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double angle = static_cast<double>(t) * frequencies[i];
      EXPECT_NEAR(table[t][i], factors[t] * std::cos(angle), 1e-12) << t << ", " << i;
      EXPECT_NEAR(table[t][frequencies.size() + i], factors[t] * std::sin(angle), 1e-12) << t << ", " << i;
    }
  }
}

// With θ = 256 and 8 dims frequencies are 1, 1/4, 1/16, 1/64; of 6 dims θ = 4096 gives 1, 1/16, 1/256.
TEST(RotaryTables, HaveTheLayersBaseAndThePartThatTurns) {
  ModelConfig config = small_config(16, 2, 2, 2, 8, 4, 4);
  config.rope_theta = 256;
  config.local_rope_theta = 1;
  config.specs = LayerSpecs({LayerSpec{}, LayerSpec{.local_rotary = true}});
  config.rope_scaling = {.kind = Kind::linear, .factor = 2};
  const std::vector<double> ones(5, 1.0);
  expect_table(table_of(config, 5, 5, false, 0), {0.5, 0.125, 1.0 / 32, 1.0 / 128}, ones);
  expect_table(table_of(config, 5, 5, true, 1), {1, 1, 1, 1}, ones);  // no scaling
  config.rotary_fraction = 0.75;
  config.rope_theta = 4096;
  expect_table(table_of(config, 5, 5, true, 0), {0.5, 1.0 / 32, 1.0 / 512}, ones);
}

TEST(RotaryTables, LongropeTakesTheLongFactorsForRunsBeyondTheOriginalContext) {
  ModelConfig config = small_config(16, 1, 2, 2, 8, 4, 4);
  config.rope_theta = 4096;
  config.rotary_fraction = 0.75;
  config.rope_scaling = {.kind = Kind::longrope,
                         .original_positions = 6,
                         .attention_factor = 1.5,
                         .short_factors = {1, 2, 4},
                         .long_factors = {8, 16, 2}};
  const std::vector<double> factors(4, 1.5);
  expect_table(table_of(config, 4, 6, true), {1, 1.0 / 32, 1.0 / 1024}, factors);
  expect_table(table_of(config, 4, 7, true), {1.0 / 8, 1.0 / 256, 1.0 / 512}, factors);
}

TEST(RotaryTables, QueriesGrowWithThePositionAndKeysDont) {
  ModelConfig config = small_config(16, 1, 2, 2, 4, 4, 4);
  config.rope_theta = 100;
  // A context in which no pair turns even once: the ramp has no width, and only the pair at its place is kept.
  config.rope_scaling = {.kind = Kind::yarn,
                         .factor = 2,
                         .original_positions = 2,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .query_growth = 0.25,
                         .attention_factor = 2};
  const std::vector<double> frequencies = {1, 0.05};
  expect_table(table_of(config, 6, 6, false), frequencies, std::vector<double>(6, 2.0));
  const double second = 2 * (1 + 0.25 * std::log(2.0));
  const double third = 2 * (1 + 0.25 * std::log(3.0));
  expect_table(table_of(config, 6, 6, true), frequencies, {2, 2, second, second, third, third});
}

/// A model with local layers has a table for each kind, not for each layer.
TEST(RotaryTables, AreAsManyAsKindsOfLayers) {
  const auto bytes = [](const ModelConfig& config) {
    std::size_t held = 0;
    run_ranks(1, [&](Context& context) {
      Rank rank(context);
      const std::size_t before = rank.memory_peaks()[Category::workspace];
      const RotaryTables tables(rank, config, DType::f32, 10, 10);
      held = rank.memory_peaks()[Category::workspace] - before;
    });
    return held;
  };
  ModelConfig config = small_config(16, 4, 2, 2, 8, 4, 4);
  EXPECT_EQ(bytes(config), 10U * 8 * 4);
  config.rotary_fraction = 0.25;
  EXPECT_EQ(bytes(config), 10U * 2 * 4);
  config.rotary_fraction = 1;
  const LayerSpec local{.local_rotary = true};
  config.specs = LayerSpecs({local, LayerSpec{}, local, LayerSpec{}});
  EXPECT_EQ(bytes(config), 2 * 10U * 8 * 4);
  config.specs = LayerSpec{.rotary_positions = false};
  EXPECT_EQ(bytes(config), 0U);
}

}  // namespace
}  // namespace tsprun::detail::test::rotary_forms_test
