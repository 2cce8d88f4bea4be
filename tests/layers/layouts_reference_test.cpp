// A training step under every layout against the reference, which shares no code with any: loss, gradient norm, every gradient.
#include "tests/layers/model_run.h"
#include "tests/reference/model.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

namespace tsprun::detail::test::layouts_reference_test {
namespace {

Layout dense(int tensor, int sequence = 1, TensorExchange exchange = TensorExchange::plain) {
  return Layout{{{AxisKind::tp, tensor}, {AxisKind::sp, sequence}}}.with(exchange);
}

/// Runs the reference in f64 on the weights that the model has, rounded to its dtype.
void expect_reference(const ModelCase& of, const Layout& on, double tolerance) {
  const std::string where = of.describe() + ", " + on.label();
  Tensors weights;
  const ModelRun run = run_model(of, on, &weights);
  const BatchData data(of);
  const reference::StepResult<double> expected =
      reference::model<double>(of.config, of.batch, of.sequence, weights, data.ids, data.labels, true,
                               {.training = true, .seed = of.seed, .step = kTestStep});
  EXPECT_NEAR(run.loss, expected.loss, tolerance * std::abs(expected.loss)) << where;
  expect_close(run.gradients, expected.gradients, tolerance, where);
  double squares = 0;
  for (const auto& [name, values] : expected.gradients) squares += norm_of(values) * norm_of(values);
  EXPECT_NEAR(run.gradient_norm, std::sqrt(squares), tolerance * std::sqrt(squares)) << where;
}

/// A random model of GPT-2's kind whose heads the layout divides.
ModelCase random_gpt2_case(std::mt19937_64& random, const Layout& layout) {
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  const std::size_t heads = static_cast<std::size_t>(layout.tensor() * layout.sequence()) * between(1, 2);
  ModelCase of;
  of.config = small_gpt2_config(between(1, 3), heads, between(1, 7), between(1, 40), between(2, 60), random() % 3 != 0);
  of.batch = between(1, 3) * static_cast<std::size_t>(layout.data());
  of.sequence = between(1, 37);
  of.recompute = static_cast<Recompute>(random() % 3);
  of.kv_bucket_heads = random() % 3;
  of.seed = random();
  of.config.mlp = of.seed % 2 == 0 ? Mlp::gelu : Mlp::gelu_tanh;
  return of;
}

/// Returns the numbers of K/V heads that so many query heads can have: any that divides them, or one that suits tp×tsp.
std::vector<std::size_t> kv_heads_for(std::size_t query_heads, const Layout& layout) {
  const bool twice = layout.token_axis() == AxisKind::tsp && layout.tensor() > 1;
  const auto tensor = static_cast<std::size_t>(layout.tensor());
  std::vector<std::size_t> divisors;
  for (std::size_t n = 1; n <= query_heads; ++n) {
    if (query_heads % n == 0 && (!twice || n % tensor == 0 || tensor % n == 0)) divisors.push_back(n);
  }
  return divisors;
}

/// A random model whose query heads the layout divides.
ModelCase random_case(std::mt19937_64& random, const Layout& layout) {
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  const std::size_t query_heads = static_cast<std::size_t>(layout.tensor() * layout.sequence()) * between(1, 3);
  const std::vector<std::size_t> divisors = kv_heads_for(query_heads, layout);
  ModelCase of;
  of.config = small_config(between(3, 24), between(1, 3), query_heads, divisors[random() % divisors.size()], 2 * between(1, 4),
                           between(1, 40), between(2, 60), random() % 3 == 0);
  of.batch = between(1, 3) * static_cast<std::size_t>(layout.data());
  of.sequence = between(1, 37);
  of.recompute = static_cast<Recompute>(random() % 3);
  of.kv_bucket_heads = random() % 3;
  of.seed = random();
  return of;
}

/// Draws how many of a head's dims turn, two or more.
void draw_rotated_part(std::mt19937_64& random, ModelConfig& config) {
  const std::size_t dims = 2 * (1 + random() % (config.head_dim / 2));
  config.rotary_fraction = dims == config.head_dim ? 1 : (static_cast<double>(dims) + 0.5) / static_cast<double>(config.head_dim);
}

/// Gives each layer sizes of its own, or the model's.
void draw_sizes(std::mt19937_64& random, ModelConfig& config, const Layout& layout) {
  const std::vector<std::size_t> divisors = kv_heads_for(config.query_heads, layout);
  const auto own = [&](std::size_t size) { return random() % 3 == 0 ? 0 : size; };
  std::vector<LayerSpec> layers(config.layers, config.layer(0));
  for (LayerSpec& layer : layers) {
    if (config.rotary_fraction == 1) layer.head_dim = own(2 * (1 + random() % 5));
    layer.kv_heads = own(divisors[random() % divisors.size()]);
    layer.intermediate = own(1 + random() % 40);
  }
  config.specs = LayerSpecs(layers);
}

void expect_reference_for_random_shapes(const std::vector<Layout>& layouts, int rounds, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr std::array<std::string_view, 6> kFamilies = {"llama", "qwen2", "qwen3", "gemma", "stablelm", "phi3"};
  std::size_t number = 0;
  for (const Layout& on : layouts) {
    for (int i = 0; i < rounds; ++i) {
      ModelCase of = random_case(random, on);
      of.config.become(model_type(kFamilies[number++ % kFamilies.size()]));
      if (of.config.mlp == Mlp::geglu_tanh && of.seed % 2 == 0) of.config.mlp = Mlp::geglu;
      if (of.config.rotary_fraction < 1) draw_rotated_part(random, of.config);
      if (number % 2 == 0) draw_sizes(random, of.config, on);
      expect_reference(of, on, 1e-11);
    }
  }
}

constexpr TensorExchange kMegatron = TensorExchange::sequence;

TEST(EachAxisAgainstReference, RandomShapes) {
  for (const int ranks : {2, 3, 4, 8}) expect_reference_for_random_shapes(each_axis(ranks), 5, static_cast<std::uint64_t>(ranks));
}

TEST(EachAxisAgainstReference, OneRankUnderTheStrategyOfItsName) {
  std::vector<Layout> layouts;
  for (const AxisRow& row : kAxes) layouts.push_back({{{row.kind, 1}}});
  expect_reference_for_random_shapes(layouts, 5, 1);
}

TEST(TensorTimesSequenceAgainstReference, RandomShapes) {
  expect_reference_for_random_shapes(
      {dense(2, 2), dense(2, 4), dense(4, 2).with(SequenceExchange::ring), dense(2, 2).with(SequenceExchange::ulysses),
       dense(2, 2, kMegatron), dense(2, 3, kMegatron).with(SequenceExchange::ring),
       dense(2, 4, kMegatron).with(SequenceExchange::ulysses)},
      5, 4);
  const Layout outside = Layout::parse("sp=4,tp=2");
  expect_reference_for_random_shapes({outside}, 3, 5);
  expect_reference_for_random_shapes({outside.with(kMegatron)}, 3, 6);
}

TEST(TensorTimesTspAgainstReference, RandomShapes) {
  expect_reference_for_random_shapes(
      {Layout::parse("tp=2,tsp=2"), Layout::parse("tp=4,tsp=2"), Layout::parse("tp=2,tsp=4").with(kMegatron)}, 6, 7);
}

TEST(DataTimesAnythingAgainstReference, RandomShapes) {
  expect_reference_for_random_shapes({Layout::parse("dp=2,tp=2,sp=2"), Layout::parse("dp=2,tp=4").with(kMegatron),
                                      Layout::parse("dp=2,zero3=3"), Layout::parse("dp=2,tp=2,tsp=2")},
                                     4, 9);
}

TEST(LayoutsAgainstReference, HeadsThatCutsDontMeet) {
  // 12 query heads of 4 K/V heads on 6 and 3 and 2 × 2 ranks: K/V heads in common with the next rank, not with all.
  const ModelCase of{.config = small_config(16, 2, 12, 4, 4, 13, 17), .batch = 2, .sequence = 23};
  for (const Layout& on :
       std::vector<Layout>{dense(6), dense(3), dense(6, 1, kMegatron), dense(3, 2), dense(3, 2).with(SequenceExchange::ring),
                           dense(3, 2).with(SequenceExchange::ulysses)}) {
    expect_reference(of, on, 1e-11);
  }
}

TEST(LayoutsAgainstReference, SequencesShorterThanTheRanksAndOfOneToken) {
  for (const std::size_t sequence : {1U, 2U, 3U, 5U}) {
    const ModelCase of{.config = small_config(16, 2, 8, 4, 4, 13, 17), .batch = 2, .sequence = sequence};
    for (const Layout& on :
         std::vector<Layout>{dense(8), dense(8, 1, kMegatron), dense(2, 4), dense(2, 4, kMegatron).with(SequenceExchange::ring),
                             dense(1, 8).with(SequenceExchange::ulysses)}) {
      expect_reference(of, on, 1e-11);
    }
  }
}

TEST(Gpt2AgainstReference, EveryLayoutForRandomShapes) {
  std::mt19937_64 random(11);
  for (const Layout& on :
       each_axis(4, {Layout::tsp(1), Layout::tsp(2), Layout::tsp(8), dense(1), dense(2), dense(3, 1, kMegatron),
                     dense(8, 1, kMegatron), dense(1, 3), dense(2, 2), dense(2, 3, kMegatron).with(SequenceExchange::ring),
                     dense(2, 2, kMegatron).with(SequenceExchange::ulysses), Layout::parse("sp=2,tp=2").with(kMegatron),
                     Layout::parse("tp=2,tsp=2"), Layout::parse("zero3=1"), Layout::parse("zero3=3"), Layout::parse("zero3=8"),
                     Layout::parse("dp=2,tsp=3"), Layout::parse("dp=2,tp=2,sp=2")})) {
    for (int i = 0; i < 3; ++i) expect_reference(random_gpt2_case(random, on), on, 1e-11);
  }
}

/// Only attention's probabilities are dropped. Lengths are such as no cut divides, and one leaves ranks without tokens.
TEST(Gpt2AgainstReference, AttentionDropoutUnderEveryLayoutAndRecomputation) {
  ModelCase of{.config = small_gpt2_config(2, 8, 3, 13, 17), .batch = 4, .seed = 5};
  of.config.residual_dropout = of.config.embedding_dropout = 0;
  of.config.attention_dropout = 0.4;
  for (const Layout& on : each_axis(4, {Layout::tsp(1), dense(2, 2), dense(2, 2).with(SequenceExchange::ring),
                                        dense(2, 2).with(SequenceExchange::ulysses), Layout::parse("tp=2,tsp=2"),
                                        Layout::parse("dp=2,tsp=2"), Layout::parse("dp=2,sp=2").with(SequenceExchange::ring)})) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      for (const std::size_t sequence : {3U, 29U}) {
        of.recompute = recompute;
        of.sequence = sequence;
        of.kv_bucket_heads = sequence == 29 ? 1 : 0;
        expect_reference(of, on, 1e-11);
      }
    }
  }
}

/// Windows within a chunk, over several chunks, and longer than the sequence, with dropout of probabilities and without.
TEST(WindowsAgainstReference, UnderEveryLayout) {
  std::mt19937_64 random(17);
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  for (const Layout& on :
       each_axis(4, {dense(1, 2), dense(2, 2), dense(2, 2).with(SequenceExchange::ring), Layout::tsp(3), Layout::tsp(8),
                     Layout::parse("sp=8").with(SequenceExchange::ring), Layout::parse("tp=2,tsp=2"), Layout::parse("zero3=3"),
                     Layout::parse("dp=2,tsp=2"), Layout::parse("dp=2,zero3=2"), Layout::parse("pp=2,tsp=2")})) {
    for (int i = 0; i < 4; ++i) {
      ModelCase of = i % 2 == 0 ? random_case(random, on) : random_gpt2_case(random, on);
      of.config.layers = 3;
      std::vector<LayerSpec> layers(3, of.config.layer(0));
      layers[0].window = between(1, 6);
      layers[2].window = between(5, 70);
      of.config.specs = LayerSpecs(layers);
      of.sequence = between(30, 61);
      expect_reference(of, on, 1e-12);
    }
  }
}

/// No type of model has these mixes; what is computed follows from the features one by one.
TEST(FeaturesAgainstReference, EachIsDecidedByItself) {
  std::mt19937_64 random(13);
  const auto either = [&] { return random() % 2 == 0; };
  for (const Layout& on : each_axis(2, {Layout::tsp(4), dense(2, 2, kMegatron), Layout::parse("zero3=3")})) {
    for (int i = 0; i < 6; ++i) {
      ModelCase of = random_gpt2_case(random, on);
      of.config.head_dim *= 2;  // for rotary positions
      of.config.hidden *= 2;
      of.config.norm = either() ? Norm::rms : Norm::layer;
      const bool rotary = either();
      of.config.learned_positions = !rotary;
      const bool projections = either();  // such files have all three in one vector
      draw_rotated_part(random, of.config);
      of.config.interleaved_rotary = either();
      of.config.local_rope_theta = 30;
      of.config.specs = LayerSpec{.rotary_positions = rotary,
                                  .local_rotary = either(),
                                  .biases = {.query = projections,
                                             .key = projections,
                                             .value = projections,
                                             .output = either(),
                                             .up = either(),
                                             .down = either()}};
      const auto multiplier = [&](double usual, double other) { return either() ? usual : other; };
      of.config.embedding_multiplier = multiplier(1, 3.5);
      of.config.residual_multiplier = multiplier(1, 0.4);
      of.config.attention_multiplier = multiplier(0, 0.3);
      of.config.logits_multiplier = multiplier(1, 0.5);
      of.config.logits_divisor = multiplier(1, 3);
      expect_reference(of, on, 1e-11);
    }
  }
}

TEST(Gpt2AgainstReference, InSinglePrecisionAndBf16) {
  std::mt19937_64 random(12);
  for (const Layout& on : std::vector<Layout>{Layout::tsp(4), dense(4), dense(2, 2, kMegatron)}) {
    ModelCase of = random_gpt2_case(random, on);
    of.dtype = DType::f32;
    expect_reference(of, on, 2e-5);
    of.config = small_gpt2_config(1, 8, 8, 100, 60);
    of.sequence += 20;
    of.dtype = DType::bf16;
    expect_reference(of, on, 2e-2);
  }
}

TEST(Gpt2AgainstReference, RefusesMoreTokensThanItHasPositions) {
  ModelCase of{.config = small_gpt2_config(1, 2, 4, 8, 9), .batch = 1, .sequence = 65};
  EXPECT_THROW(run_model(of, 1), std::exception);
  of.sequence = 64;
  EXPECT_NO_THROW(run_model(of, 1));
}

/// Norms before, behind and around sublayers, and one for both side by side: every kind of norm, with and without dropout, in
/// every recomputation mode.
TEST(NormsAgainstReference, InEveryPlaceUnderEveryLayout) {
  constexpr std::array kNorms = {Norm::rms, Norm::layer, Norm::layer_without_bias};
  std::size_t number = 0;
  for (const Layout& on :
       each_axis(4, {Layout::tsp(1), dense(2, 1, kMegatron), dense(2, 2), dense(1, 2).with(SequenceExchange::ulysses),
                     dense(2, 2, kMegatron).with(SequenceExchange::ring), Layout::parse("zero3=3"), Layout::parse("tp=2,tsp=2"),
                     Layout::parse("dp=2,tsp=2"), Layout::parse("pp=2,tsp=2"), Layout::parse("pp=4")})) {
    for (const Norm norm : kNorms) {
      ModelCase of{.config = small_norms_config(number % 2 == 0 ? 2 : 4, norm, number % 3 == 0), .batch = 8, .sequence = 13};
      of.recompute = static_cast<Recompute>(number % 3);
      of.micro_batches = 1 + number % 2;
      of.seed = ++number;
      of.config.gains_from_one = number % 2 == 0;
      of.config.residual_multiplier = number % 5 < 2 ? 1 : 0.4;
      of.config.residual_dropout = number % 4 == 0 ? 0.25 : 0;
      expect_reference(of, on, 1e-11);
    }
  }
}

/// Results of sublayers are rounded before the norms behind them.
TEST(NormsAgainstReference, InSinglePrecisionAndBf16) {
  for (const Layout& on : std::vector<Layout>{Layout::tsp(2), dense(2, 2, kMegatron)}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 2e-5}, std::pair{DType::bf16, 3e-2}}) {
      ModelCase of{.config = small_norms_config(2, Norm::rms), .batch = 2, .sequence = 33, .dtype = dtype};
      of.config.hidden = 64;
      expect_reference(of, on, tolerance);
    }
  }
}

/// Each by itself, with a tied embedding, in the type in which such models run.
TEST(MultipliersAgainstReference, InEveryType) {
  std::mt19937_64 random(14);
  for (const Layout& on : std::vector<Layout>{Layout::tsp(2), dense(2, 2, kMegatron)}) {
    for (double ModelSpec::*const multiplier :
         {&ModelSpec::embedding_multiplier, &ModelSpec::residual_multiplier, &ModelSpec::attention_multiplier,
          &ModelSpec::logits_multiplier, &ModelSpec::logits_divisor}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        ModelCase of = random_case(random, on);
        of.config.tied_embeddings = true;
        of.config.layers = 1;
        of.config.hidden = 64;
        of.config.*multiplier = 1.7;
        of.sequence += 20;
        of.dtype = dtype;
        expect_reference(of, on, dtype == DType::f64 ? 1e-11 : dtype == DType::f32 ? 2e-5 : 3e-2);
      }
    }
  }
}

TEST(LayoutsAgainstReference, InSinglePrecisionAndBf16) {
  std::mt19937_64 random(10);
  for (const Layout& on : std::vector<Layout>{dense(4), dense(4, 1, kMegatron), dense(2, 2),
                                              dense(2, 2, kMegatron).with(SequenceExchange::ring), Layout::parse("tp=2,tsp=2")}) {
    ModelCase of = random_case(random, on);
    of.dtype = DType::f32;
    expect_reference(of, on, 2e-5);
    of.config.layers = 1;
    of.config.hidden = 64;
    of.sequence += 20;
    of.dtype = DType::bf16;
    // The largest error is that of w_k where a head's dim is 2: 1.9e-2, and 2.3e-2 where bf16 units round dS to bf16, too.
    expect_reference(of, on, 3e-2);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::layouts_reference_test
