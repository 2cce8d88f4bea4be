// Models whose full layers take v from W_K's product, whose v is normed and whose outputs are scaled, with and without inputs of
// their own for each layer, under all layouts: the gradients of one rank (which families_torch_test.cpp holds against PyTorch's),
// and bytes and memory as phantoms and formulas count them.
#include "layers/layout/check_layout.h"
#include "layers/theory/flows.h"
#include "layers/theory/layouts.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::test::layer_inputs_test {
namespace {

/// Three layers of which the second and the third have no window and no W_V; `width`: of layers' inputs. `lends`: two more take
/// keys and values of the first and of the third, with MLPs twice as wide.
ModelConfig small_config(std::size_t width, bool tied, bool lends = false) {
  nlohmann::json types = {"sliding_attention", "full_attention", "full_attention"};
  for (const char* type : {"sliding_attention", "full_attention"}) {
    if (lends) types.emplace_back(type);
  }
  const nlohmann::json object = {{"model_type", "gemma4_text"},
                                 {"hidden_size", 16},
                                 {"num_hidden_layers", types.size()},
                                 {"num_kv_shared_layers", types.size() - 3},
                                 {"use_double_wide_mlp", lends},
                                 {"num_attention_heads", 8},
                                 {"num_key_value_heads", 4},
                                 {"head_dim", 4},
                                 {"global_head_dim", 8},
                                 {"num_global_key_value_heads", 2},
                                 {"attention_k_eq_v", true},
                                 {"attention_bias", true},
                                 {"intermediate_size", 13},
                                 {"vocab_size", 17},
                                 {"vocab_size_per_layer_input", 17},
                                 {"hidden_size_per_layer_input", width},
                                 {"sliding_window", 5},
                                 {"layer_types", types},
                                 {"final_logit_softcapping", 3.0},
                                 {"tie_word_embeddings", tied}};
  return parse_config(object.dump(), "test").config;
}

std::vector<Layout> layouts() {
  return {Layout::tsp(2),
          Layout::tsp(4),
          Layout::tsp(8),
          Layout::parse("tp=2"),
          Layout::parse("tp=4"),
          Layout::parse("tp=4").with(TensorExchange::sequence),
          Layout::parse("sp=3"),
          Layout::parse("sp=2").with(SequenceExchange::ring),
          Layout::parse("sp=4").with(SequenceExchange::ulysses),
          Layout::parse("zero3=3"),
          Layout::parse("tp=2,sp=2").with(SequenceExchange::ring),
          Layout::parse("tp=2,tsp=2"),
          Layout::parse("tp=2,tsp=2").with(TensorExchange::sequence),
          Layout::parse("dp=2,tsp=2"),
          Layout::parse("dp=2,tp=2").with(DataSharing::zero1),
          Layout::parse("dp=2,sp=2").with(DataSharing::zero3),
          Layout::parse("dp=2,tsp=2").with(DataSharing::zero3),
          Layout::parse("dp=2,tp=2").with(DataSharing::zero3),
          Layout::parse("dp=2,shard=2").with(DataSharing::zero3),
          Layout::parse("dp=2,shard=2,tp=2,sp=2").with(DataSharing::zero3),
          Layout::parse("pp=3"),
          Layout::parse("pp=2,tsp=2")};
}

bool is_possible(const ModelConfig& config, const Layout& layout) {
  try {
    check_layout(config, layout);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Returns the bytes of the sums of tables' gradients. The rest of the backward pass' bytes are, in f64, as many as rows that go
/// to their tokens have, which depends on the ids.
std::uint64_t sums_of_tables(const theory::Traffic& traffic, const Layout& layout) {
  const std::uint64_t rows = layout.cuts_vocabulary_over_tensor() ? 0 : traffic.forward[Purpose::embedding];
  return traffic.backward[Purpose::embedding] - rows;
}

void expect_under_all_layouts(const ModelConfig& config, std::size_t least) {
  std::size_t number = 0;
  for (const Layout& layout : layouts()) {
    ModelCase of{.config = config, .batch = 8, .sequence = 13};
    if (!is_possible(of.config, layout)) continue;
    of.recompute = static_cast<Recompute>(number % 3);
    of.micro_batches = number % 2 == 0 ? 1 : 2;
    of.kv_bucket_heads = number % 4;
    ++number;
    const std::string where = of.describe() + ", " + layout.label();
    SCOPED_TRACE(where);
    const ModelRun one = run_model(of, 1);
    const ModelRun run = run_model(of, layout);
    EXPECT_NEAR(run.loss, one.loss, 1e-12 * one.loss);
    EXPECT_NEAR(run.gradient_norm, one.gradient_norm, 1e-12 * one.gradient_norm);
    expect_close(run.gradients, one.gradients, 1e-12, where);
    expect_counted(run, where);
    const theory::MeshSetting mesh{.setting = of.setting(), .layout = layout};
    const std::uint64_t id_bytes = layout.cuts_vocabulary_over_tensor() ? sizeof(std::int64_t) : kTokenBytes;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const theory::MeshPlace place = theory::place_of(layout, rank);
      const CategoryBytes& peak = run.peaks[static_cast<std::size_t>(rank)];
      EXPECT_EQ(peak.total, run.forecast[static_cast<std::size_t>(rank)].total) << rank;
      EXPECT_EQ(theory::held(mesh, place).total() * of.setting().bytes.element, peak[Category::parameters]) << rank;
      if (layout.stages() == 1) {
        EXPECT_EQ(theory::activation_bytes(mesh, place, id_bytes), peak[Category::activations]) << rank;
      }
    }
    const theory::Traffic flows = theory::sum(theory::step_flows(of.setting(), layout));
    theory::Traffic moved;
    for (const TrafficCounters& rank : run.forward) moved.forward += theory::PurposeBytes::received(rank);
    for (const TrafficCounters& rank : run.backward) moved.backward += theory::PurposeBytes::received(rank);
    EXPECT_EQ(flows.backward[Purpose::gradients], moved.backward[Purpose::gradients]);
    if (layout.stages() == 1) {
      EXPECT_EQ(flows.forward[Purpose::weights], moved.forward[Purpose::weights]);
      EXPECT_EQ(flows.backward[Purpose::weights], moved.backward[Purpose::weights]);
      EXPECT_EQ(sums_of_tables(flows, layout), sums_of_tables(moved, layout));
    }
  }
  EXPECT_EQ(number, least);
}

TEST(ValuesFromKeys, GiveTheGradientsOfOneRankUnderAllLayouts) {
  expect_under_all_layouts(small_config(0, false), layouts().size());
}

/// But pipelines, which are refused.
TEST(LayerInputs, GiveTheGradientsOfOneRankUnderAllLayouts) {
  expect_under_all_layouts(small_config(5, true), layouts().size() - 2);
  expect_under_all_layouts(small_config(3, false), layouts().size() - 2);
}
TEST(LayerInputs, GoWithKeysOfEarlierLayersUnderAllLayouts) {
  expect_under_all_layouts(small_config(3, true, true), layouts().size() - 2);
}

TEST(LayerInputs, AreRefusedWhereTheyAreNotAtHand) {
  const ModelConfig config = small_config(5, true);
  EXPECT_REFUSED(check_layout(config, Layout::parse("pp=3,tsp=2")), "pp=3", "try --layout tsp=2");
  EXPECT_REFUSED(check_layout(config, Layout::parse("pp=3")), "pp=3", "tsp=1");
}

/// A batch that doesn't fill all data ranks: those without a sequence gather the tables all the same.
TEST(LayerInputs, AreEvaluatedWhereDataRanksShareTheirTable) {
  ModelCase of{.config = small_config(5, false, true), .batch = 3, .sequence = 13};
  const BatchData data(of);
  const auto loss_under = [&](const Layout& layout) {
    double loss = 0;
    run_ranks(layout.ranks(), [&](Context& context) {
      Rank rank(context);
      Mesh mesh(context.world(), layout);
      Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
      model.parameters().fill_fresh(of.config.layers, 1);
      disturb(model.parameters());
      const double mean = model.evaluate(data.view(of)).mean;
      if (context.rank() == 0) loss = mean;
    });
    return loss;
  };
  const double one = loss_under(Layout::tsp(1));
  for (const char* layout : {"dp=2", "dp=4", "dp=2,tsp=2"})
    EXPECT_NEAR(loss_under(Layout::parse(layout).with(DataSharing::zero3)), one, 1e-12 * one) << layout;
}

/// The scale of outputs is none of what training changes.
TEST(OutputScales, StayAsTheyAre) {
  const ModelCase of{.config = small_config(0, true), .batch = 1, .sequence = 5};
  run_ranks(1, [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), Layout::tsp(1));
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .training = true});
    model.parameters().fill_fresh(of.config.layers, 1);
    disturb(model.parameters());
    const BatchData data(of);
    const auto scales = [&] {
      std::vector<double> all;
      for (const ParameterPart& part : model.parameters().parts()) {
        if (part.plan.parameter.role == ParameterRole::output_scale) all.push_back(part.value.as<double>()[0]);
      }
      return all;
    };
    const std::vector<double> before = scales();
    ASSERT_EQ(before.size(), 3U);
    for (std::uint64_t step = 1; step < 3; ++step) {
      model.forward_backward(data.view(of));
      model.update({.learning_rate = 0.1, .weight_decay = 0.5, .step = step}, model.gradient_norm());
    }
    EXPECT_EQ(scales(), before);
  });
}

}  // namespace
}  // namespace tsprun::detail::test::layer_inputs_test
