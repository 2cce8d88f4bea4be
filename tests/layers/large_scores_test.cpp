// Attention scores that are large and all equal, 320,000 after scaling, in f32: every key has the same weight, and every layout
// gives the loss, gradients and logits of the f64 model on one rank, where a log-sum-exp in one number loses how many keys there
// are.
#include "layers/model/decode.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

namespace tsprun::detail::test::large_scores_test {
namespace {

/// GPT-2's kind has no rotation, so that equal queries and equal keys give equal scores.
ModelCase large_scores() {
  ModelConfig config = small_gpt2_config(2, 4, 8, 21, 40);
  config.residual_dropout = config.embedding_dropout = config.attention_dropout = 0;
  return {.config = config, .batch = 2, .sequence = 29, .dtype = DType::f32};
}

template <class T>
void set_element(const Tensor& tensor, std::size_t i, double value) {
  tensor.as<T>()[i] = static_cast<T>(value);
}

/// Makes all queries and keys one vector, by biases alone. Values stay as they are.
void equalise(const ParameterStore& store, const ModelConfig& config) {
  const auto d = static_cast<double>(config.head_dim);
  const double each = std::sqrt(320'000 / std::sqrt(d));  // each²·d/√d = 320,000
  for (const ParameterPart& part : store.parts()) {
    const PartPlan& plan = part.plan;
    const bool bias = plan.parameter.role == ParameterRole::query_key_value_bias;
    if (!bias && plan.parameter.role != ParameterRole::query_key_value) continue;
    for (std::size_t i = 0; i < plan.rows(); ++i) {
      for (std::size_t j = 0; j < plan.width(); ++j) {
        const std::size_t column = plan.block.first_column + (plan.transposed ? i : j);
        if (column >= 2 * config.query_width({})) continue;
        const std::size_t at = i * plan.width() + j;
        const double value = bias ? each : 0;
        part.value.dtype() == DType::f64 ? set_element<double>(part.value, at, value) : set_element<float>(part.value, at, value);
      }
    }
  }
}

struct Outcome {
  double trained = 0;    // loss
  double evaluated = 0;  // loss
  Tensors gradients;
  std::vector<double> logits;  // after a prompt and two tokens
};

Outcome run(const ModelCase& of, const Layout& layout, bool decodes) {
  Outcome result;
  const BatchData data(of);
  std::mutex mutex;
  run_ranks(layout.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), layout);
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .recompute = of.recompute, .training = true});
    model.parameters().fill_fresh(of.config.layers, of.seed);
    disturb(model.parameters());
    equalise(model.parameters(), of.config);
    const double evaluated = model.evaluate(data.view(of)).mean;
    const double trained = model.forward_backward(data.view(of)).mean;
    for (const ParameterPart& part : model.parameters().parts()) {
      if (part.plan.counted) collect(rank, part.plan, part.gradient, result.gradients, mutex);
    }
    std::vector<double> logits;
    if (decodes) {
      Decoder decoder(rank, model, {11});
      decoder.prompt(std::vector<std::vector<Token>>{{data.ids.begin(), data.ids.begin() + 9}});
      decoder.step({&data.ids[9], 1});
      const ConstTensor last = decoder.step({&data.ids[10], 1});
      for (std::size_t v = 0; v < of.config.vocabulary; ++v) logits.push_back(element(buffer_of(last), v));
    }
    const std::lock_guard lock(mutex);
    if (context.rank() != 0) return;
    result.trained = trained;
    result.evaluated = evaluated;
    result.logits = std::move(logits);
  });
  return result;
}

TEST(LargeScores, GiveTheSameUnderEveryLayout) {
  ModelCase of = large_scores();
  of.dtype = DType::f64;
  const Outcome expected = run(of, Layout::tsp(1), true);
  of.dtype = DType::f32;
  struct Way {
    Layout layout;
    bool decodes = true;
  };
  const std::vector<Way> ways = {{Layout::tsp(1)},
                                 {Layout::tsp(2)},
                                 {Layout::parse("tp=2")},
                                 {Layout::parse("sp=2")},
                                 {Layout::parse("sp=2").with(SequenceExchange::ring)},
                                 {Layout::parse("sp=4").with(SequenceExchange::ring)},
                                 {Layout::parse("sp=2").with(SequenceExchange::ulysses), false},
                                 {Layout::parse("zero3=2"), false},
                                 {Layout::parse("tp=2,sp=2").with(SequenceExchange::ring)}};
  for (const auto& [layout, decodes] : ways) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      of.recompute = recompute;
      const std::string where = layout.label() + (recompute == Recompute::full ? ", full" : "");
      const Outcome actual = run(of, layout, decodes);
      EXPECT_NEAR(actual.evaluated, expected.evaluated, 1e-5) << where;
      EXPECT_NEAR(actual.trained, expected.trained, 1e-5) << where;
      // Of queries and keys the gradients are zero but for roundings, times numbers of some hundred.
      Tensors found = actual.gradients;
      Tensors wanted = expected.gradients;
      for (auto* gradients : {&found, &wanted})
        std::erase_if(*gradients, [](const auto& each) { return each.first.find("c_attn") != std::string::npos; });
      expect_close(found, wanted, 1e-3, where);
      for (std::size_t v = 0; v < actual.logits.size(); ++v) EXPECT_NEAR(actual.logits[v], expected.logits[v], 1e-3) << where;
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::large_scores_test
