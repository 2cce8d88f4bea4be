// Which part of each parameter every rank holds and counts, as tables, and for all layouts: each element is counted once.
#include "layers/parameters/place.h"

#include "layers/layout/check_layout.h"
#include "layers/model/model.h"
#include "layers/model/single_block.h"
#include "tests/layers/model_run.h"
#include "tests/support/refusal.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tsprun::detail::test::place_test {
namespace {

/// Returns "self_attn.q_proj [4:8, 0:12] counted" of a part.
std::string line_of(const PartPlan& part) {
  std::string name = part.parameter.name.substr(0, part.parameter.name.rfind('.'));
  for (const char* before : {"model.layers.0.", "model.", "h.0.", "h.1."}) {
    if (name.starts_with(before)) name = name.substr(std::string(before).size());
  }
  if (part.parameter.name.ends_with("bias")) name += ".bias";
  const safetensors::Rectangle& b = part.block;
  return fmt::format("{} [{}:{}, {}:{}]{}{}", name, b.first_row, b.first_row + b.rows, b.first_column, b.first_column + b.columns,
                     part.transposed ? " as columns" : "", part.counted ? "" : ", a copy");
}

std::string table_of(const std::vector<PackPlan>& packs) {
  std::string table;
  for (const PackPlan& pack : packs) {
    for (const PartPlan& part : pack.parts) table += line_of(part) + "\n";
    table += "\n";
  }
  return table;
}

/// Returns all packs of a rank, a line a part, and an empty line after each pack.
std::string table_of(const ModelConfig& config, const Layout& layout, int rank) {
  return table_of(Placement(config, layout, rank).packs(model_parameters(config)));
}

/// Every layout of at most 12 ranks, in every variant that changes who holds what.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int dp : {1, 2}) {
    for (const int tp : {1, 2, 3, 4, 6}) {
      for (const AxisKind along : {AxisKind::sp, AxisKind::tsp, AxisKind::zero3}) {
        for (const int tokens : {1, 2, 3, 4}) {
          for (const bool outside : {false, true}) {
            if (dp * tp * tokens > 12 || (outside && (tp == 1 || tokens == 1))) continue;
            Layout layout{{{AxisKind::dp, dp}, {AxisKind::tp, tp}, {along, tokens}}};
            if (outside) std::swap(layout.axes[1], layout.axes[2]);
            if (tp == 1) std::erase_if(layout.axes, [](const Axis& axis) { return axis.kind == AxisKind::tp; });
            if (!layout.why_not().empty()) continue;
            all.push_back(layout);
            if (tp > 1) all.push_back(layout.with(TensorExchange::sequence));
          }
        }
      }
    }
  }
  for (const char* text : {"pp=2", "pp=2,tsp=3", "dp=2,pp=2,tp=3", "pp=2,zero3=3", "pp=2,tp=4", "pp=2,tp=2,sp=2"})
    all.push_back(Layout::parse(text));
  return all;
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> all = {small_config(10, 2, 12, 2, 4, 13, 29), small_config(10, 1, 12, 4, 2, 5, 7, true),
                                  small_config(10, 1, 12, 12, 2, 7, 3), small_gpt2_config(2, 12, 2, 11, 17),
                                  small_gpt2_config(1, 12, 2, 5, 17, false)};
  for (const char* type : {"qwen2", "qwen3", "stablelm", "phi3"}) {
    all.push_back(small_config(10, 2, 12, 4, 2, 5, 7));
    all.back().become(model_type(type));
  }
  all.push_back(small_config(10, 3, 12, 4, 2, 5, 7));
  all.back().specs = unlike_layers();
  all.push_back(small_config(10, 4, 12, 4, 2, 5, 7));
  all.back().type = &every_role();
  all.back().norm = Norm::layer;
  all.back().specs = unlike_norms();
  return all;
}

bool is_possible(const ModelConfig& config, const Layout& layout) {
  try {
    check_layout(config, layout);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Calls body(config, layout) for all models and all layouts that cut them.
template <class Body>
void for_all(Body body) {
  std::size_t cases = 0;
  for (const ModelConfig& config : models()) {
    for (const Layout& layout : layouts()) {
      if (!is_possible(config, layout)) continue;
      SCOPED_TRACE(fmt::format("{} on {}", ModelCase{.config = config}.describe(), layout.label()));
      body(config, layout);
      if (testing::Test::HasFailure()) return;
      ++cases;
    }
  }
  EXPECT_GT(cases, 200U);
}

TEST(Place, EachElementOfTheModelIsCountedByOneRank) {
  for_all([](const ModelConfig& config, const Layout& layout) {
    std::vector<Placement> ranks;
    for (int rank = 0; rank < layout.ranks(); ++rank) ranks.emplace_back(config, layout, rank);
    for (const Parameter& parameter : model_parameters(config)) {
      std::vector<int> counted(parameter.elements());
      for (const Placement& rank : ranks) {
        for (const PartPlan& part : rank.of(parameter)) {
          for (std::size_t row = part.block.first_row; part.counted && row < part.block.first_row + part.block.rows; ++row) {
            for (std::size_t i = 0; i < part.block.columns; ++i)
              ++counted[row * parameter.columns() + part.block.first_column + i];
          }
        }
      }
      EXPECT_TRUE(std::ranges::all_of(counted, [](int times) { return times == 1; })) << parameter.name;
    }
  });
}

TEST(Place, ElementsAreThoseOfThePartsOfAllPacks) {
  for_all([](const ModelConfig& config, const Layout& layout) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Placement placement(config, layout, rank);
      std::map<PackKind, std::uint64_t> elements;
      for (const PackPlan& pack : placement.packs(model_parameters(config))) {
        std::set<std::size_t> widths;
        for (const PartPlan& part : pack.parts) {
          widths.insert(part.width());
          elements[traits_of(part.parameter.role).pack] += part.rows() * part.width();
        }
        EXPECT_EQ(widths.size(), 1U) << "a pack of several widths on rank " << rank;
      }
      for (const auto& [pack, count] : elements) EXPECT_EQ(placement.elements(pack), count) << "rank " << rank;
    }
  });
}

TEST(Place, SaysWhatModelsAndSingleBlocksHold) {
  const ModelConfig config = small_config(10, 1, 12, 2, 4, 13, 29);
  const Layout layout = Layout::parse("dp=2,tp=4");
  const auto table_of_parts = [](const ParameterStore& store) {
    std::string table;
    for (const ParameterPart& part : store.parts()) table += line_of(part.plan) + "\n";
    return table;
  };
  const auto without_empty_lines = [](std::string table) {
    for (std::size_t at = 0; (at = table.find("\n\n")) != std::string::npos;) table.erase(at, 1);
    return table;
  };
  for (int number = 0; number < layout.ranks(); ++number) {
    Context context = make_phantom(number, layout.ranks());
    Rank rank(context);
    Mesh mesh(context.world(), layout);
    Model model(rank, mesh, {.config = config});
    EXPECT_EQ(table_of_parts(model.parameters()), without_empty_lines(table_of(config, layout, number)));
    SingleBlock block(rank, mesh, {.config = config}, 2, 24);
    // Each data rank's block is a whole of its own.
    const Placement in_replica(config, Layout::parse("tp=4"), number % 4);
    EXPECT_EQ(table_of_parts(block.parameters()), without_empty_lines(table_of(in_replica.packs(block_parameters(config, 0)))));
  }
}

TEST(Place, TensorRanksShareKvHeadsAndTheFirstCountsThem) {
  const ModelConfig config = small_config(10, 1, 6, 2, 4, 13, 29);
  const Layout layout = Layout::parse("tp=3");
  EXPECT_EQ(table_of(config, layout, 1), R"(self_attn.k_proj [0:4, 0:10], a copy
self_attn.k_proj [4:8, 0:10]
self_attn.v_proj [0:4, 0:10], a copy
self_attn.v_proj [4:8, 0:10]
self_attn.q_proj [8:16, 0:10]
self_attn.o_proj [0:10, 8:16] as columns

mlp.gate_proj [5:9, 0:10]
mlp.up_proj [5:9, 0:10]
mlp.down_proj [0:10, 5:9] as columns

input_layernorm [0:1, 0:10], a copy
post_attention_layernorm [0:1, 0:10], a copy
norm [0:1, 0:10], a copy

embed_tokens [10:20, 0:10]

lm_head [10:20, 0:10]

)");
  EXPECT_EQ(copied_heads(config, config.layer(0), {1, 3}), (std::vector<CopiedHead>{{0, 0, 1}, {1, 1, 2}}));
  EXPECT_EQ(copied_heads(config, config.layer(0), {0, 3}), (std::vector<CopiedHead>{{0, 0, 1}}));
}

/// The second layer has one K/V head, which the first rank owns, and heads and MLP of other sizes.
TEST(Place, TspCutsEachLayerByItsOwnSizes) {
  ModelConfig config = small_config(10, 2, 4, 2, 2, 3, 6, true);
  config.specs = sizes({{.head_dim = 4, .kv_heads = 1, .intermediate = 5}});
  EXPECT_EQ(table_of(config, Layout::tsp(2), 1), R"(self_attn.k_proj [2:4, 0:10]
self_attn.v_proj [2:4, 0:10]
self_attn.q_proj [4:8, 0:10]
self_attn.o_proj [0:10, 4:8] as columns

mlp.gate_proj [2:3, 0:10]
mlp.up_proj [2:3, 0:10]
mlp.down_proj [0:10, 2:3] as columns

layers.1.self_attn.k_proj [4:4, 0:10]
layers.1.self_attn.v_proj [4:4, 0:10]
layers.1.self_attn.q_proj [8:16, 0:10]
layers.1.self_attn.o_proj [0:10, 8:16] as columns

layers.1.mlp.gate_proj [3:5, 0:10]
layers.1.mlp.up_proj [3:5, 0:10]
layers.1.mlp.down_proj [0:10, 3:5] as columns

input_layernorm [0:1, 0:10], a copy
post_attention_layernorm [0:1, 0:10], a copy
layers.1.input_layernorm [0:1, 0:10], a copy
layers.1.post_attention_layernorm [0:1, 0:10], a copy
norm [0:1, 0:10], a copy

embed_tokens [3:6, 0:10]

)");
}

TEST(Place, Zero3CutsTheRowsOfPacksWhateverTheyBelongTo) {
  EXPECT_EQ(table_of(small_config(10, 1, 3, 1, 4, 5, 7, true), Layout::parse("dp=2,zero3=3"), 4),
            R"(self_attn.k_proj [4:4, 0:10], a copy
self_attn.v_proj [4:4, 0:10], a copy
self_attn.q_proj [3:12, 0:10], a copy
self_attn.o_proj [0:10, 0:2] as columns, a copy

mlp.gate_proj [5:5, 0:10], a copy
mlp.up_proj [0:5, 0:10], a copy
mlp.down_proj [0:10, 0:0] as columns, a copy

input_layernorm [0:1, 0:10], a copy
post_attention_layernorm [0:1, 0:10], a copy
norm [0:1, 0:10], a copy

embed_tokens [3:5, 0:10], a copy

)");
}

/// Returns the rectangles of which a rank holds the optimizer states.
std::string table_of_states(const ModelConfig& config, const Layout& layout, int rank) {
  std::vector<PackPlan> packs = Placement(config, layout, rank).packs(model_parameters(config));
  for (PackPlan& pack : packs) {
    const std::vector<ElementRange> held = states_held(pack, pack.sharer);
    std::vector<PartPlan> all;
    for (std::size_t part = 0; part < held.size(); ++part) {
      for (PartPlan& each : rectangles(pack.parts[part], held[part])) all.push_back(std::move(each));
    }
    pack.parts = std::move(all);
  }
  return table_of(packs);
}

TEST(Place, ReplicasShareOptimizerStatesOfWhateverElementsAnAllReduceCuts) {
  const ModelConfig config = small_config(10, 1, 4, 2, 2, 5, 7);
  const Layout layout = Layout::parse("dp=3,tp=2").with(DataSharing::zero1);
  // Packs of 10 × 12, 10 × 9, 3 × 10 and 4 × 10 elements on the first rank of tp.
  EXPECT_EQ(table_of_states(config, layout, 2), R"(self_attn.q_proj [0:4, 0:10]

mlp.up_proj [0:3, 0:10]

post_attention_layernorm [0:1, 0:10]

embed_tokens [1:2, 4:10]
embed_tokens [2:3, 0:7]

lm_head [1:2, 4:10]
lm_head [2:3, 0:7]

)");
  EXPECT_EQ(table_of_states(config, layout, 5), R"(self_attn.o_proj [0:10, 4:8] as columns

mlp.down_proj [0:10, 3:5] as columns

norm [0:1, 0:10], a copy

embed_tokens [6:7, 0:10]

lm_head [6:7, 0:10]

)");
}

TEST(Place, EachOptimizerStateIsCountedByOneRank) {
  for_all([](const ModelConfig& config, const Layout& plain) {
    const Layout layout = plain.with(DataSharing::zero1);
    std::map<std::string, std::vector<int>> counted;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Placement placement(config, layout, rank);
      std::map<PackKind, std::uint64_t> states;
      for (const PackPlan& pack : placement.packs(model_parameters(config))) {
        const std::vector<ElementRange> held = states_held(pack, pack.sharer);
        for (std::size_t i = 0; i < held.size(); ++i) {
          states[traits_of(pack.parts[i].parameter.role).pack] += held[i].count;
          for (const PartPlan& part : rectangles(pack.parts[i], held[i])) {
            std::vector<int>& times = counted[part.parameter.name];
            times.resize(part.parameter.elements());
            for (std::size_t row = part.block.first_row; part.counted && row < part.block.first_row + part.block.rows; ++row) {
              for (std::size_t j = 0; j < part.block.columns; ++j)
                ++times[row * part.parameter.columns() + part.block.first_column + j];
            }
          }
        }
      }
      for (const auto& [pack, count] : states) EXPECT_EQ(placement.states(pack), count) << "rank " << rank;
    }
    for (const auto& [name, times] : counted) EXPECT_TRUE(std::ranges::all_of(times, [](int each) { return each == 1; })) << name;
  });
}

/// Blocks and tables have no copy on any data rank, vectors one on each.
TEST(Place, ReplicasThatShareWeightsHoldWhatTheyHaveTheStatesOf) {
  for_all([](const ModelConfig& config, const Layout& plain) {
    const Layout layout = plain.with(DataSharing::zero3);
    if (!layout.shares_weights() || !layout.why_not().empty()) return;
    std::map<PackKind, std::uint64_t> held;
    std::map<PackKind, std::uint64_t> whole;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Placement placement(config, layout, rank);
      const Placement of_replica(config, plain, rank);
      for (const PackKind pack : {PackKind::attention, PackKind::mlp, PackKind::embedding, PackKind::head}) {
        EXPECT_EQ(placement.elements(pack), placement.states(pack));
        held[pack] += placement.elements(pack) * static_cast<std::uint64_t>(layout.data());
        whole[pack] += of_replica.elements(pack);
      }
      EXPECT_EQ(placement.elements(PackKind::replicated), of_replica.elements(PackKind::replicated));
      EXPECT_EQ(placement.elements(PackKind::biases), of_replica.elements(PackKind::biases));
      for (const PackPlan& pack : placement.packs(model_parameters(config))) {
        const PackKind kind = traits_of(pack.parts.front().parameter.role).pack;
        EXPECT_EQ(pack.cuts_weights, kind != PackKind::replicated && kind != PackKind::biases);
      }
    }
    EXPECT_EQ(held, whole);
  });
}

TEST(Place, MatricesOfInputsFirstAndProjectionsInOne) {
  EXPECT_EQ(table_of(small_gpt2_config(1, 4, 2, 5, 7), Layout::tsp(4), 1), R"(attn.c_attn [0:8, 10:12] as columns
attn.c_attn [0:8, 18:20] as columns
attn.c_attn [0:8, 2:4] as columns
attn.c_proj [2:4, 0:8]

mlp.c_fc [0:8, 2:3] as columns
mlp.c_proj [2:3, 0:8]

ln_1 [0:1, 0:8], a copy
ln_1.bias [0:1, 0:8], a copy
attn.c_proj.bias [0:1, 0:8], a copy
ln_2 [0:1, 0:8], a copy
ln_2.bias [0:1, 0:8], a copy
mlp.c_proj.bias [0:1, 0:8], a copy
ln_f [0:1, 0:8], a copy
ln_f.bias [0:1, 0:8], a copy
wpe [0:64, 0:8], a copy

wte [2:4, 0:8]

attn.c_attn.bias [0:1, 0:24] as columns, a copy
mlp.c_fc.bias [0:1, 0:5] as columns, a copy

)");
}

/// Returns what a rank holds, a line a part, without the parts that have no rows.
std::string table_of_held(const ModelConfig& config, const Layout& layout, int rank) {
  std::string table;
  for (const Parameter& parameter : model_parameters(config)) {
    for (const PartPlan& part : Placement(config, layout, rank).of(parameter)) {
      if (part.rows() * part.width() > 0) table += fmt::format("{}: {}\n", parameter.layer, line_of(part));
    }
  }
  return table;
}

/// Both ends of a pipeline have a tied embedding, and the first counts it.
TEST(Place, StagesHoldTheirLayersAndTheFirstOrLastWhatIsOutside) {
  const ModelConfig config = small_gpt2_config(2, 4, 2, 5, 7);
  ASSERT_TRUE(config.tied_embeddings);
  const auto of_layer = [](int number) {
    return fmt::format(R"({0}: ln_1 [0:1, 0:8]
{0}: ln_1.bias [0:1, 0:8]
{0}: attn.c_attn [0:8, 0:8] as columns
{0}: attn.c_attn [0:8, 8:16] as columns
{0}: attn.c_attn [0:8, 16:24] as columns
{0}: attn.c_attn.bias [0:1, 0:24] as columns
{0}: attn.c_proj [0:8, 0:8]
{0}: attn.c_proj.bias [0:1, 0:8]
{0}: ln_2 [0:1, 0:8]
{0}: ln_2.bias [0:1, 0:8]
{0}: mlp.c_fc [0:8, 0:5] as columns
{0}: mlp.c_fc.bias [0:1, 0:5] as columns
{0}: mlp.c_proj [0:5, 0:8]
{0}: mlp.c_proj.bias [0:1, 0:8]
)",
                       number);
  };
  EXPECT_EQ(table_of_held(config, Layout::parse("pp=2"), 0), "0: wte [0:7, 0:8]\n0: wpe [0:64, 0:8]\n" + of_layer(0));
  EXPECT_EQ(table_of_held(config, Layout::parse("pp=2"), 1),
            "0: wte [0:7, 0:8], a copy\n" + of_layer(1) + "0: ln_f [0:1, 0:8]\n0: ln_f.bias [0:1, 0:8]\n");
}

TEST(Place, RefusesMoreStagesThanLayers) {
  const ModelConfig config = small_config(10, 2, 6, 2, 4, 13, 29);
  EXPECT_EQ(refused_text([&] { check_layout(config, Layout::parse("pp=3")); }),
            "3 stages of 2 layers: each must have one; at most 2 work");
}

/// Returns "sp, then tp; data dp" of a pack's sums.
std::string sums_of(const char* layout, PackKind pack, TensorExchange exchange = TensorExchange::plain) {
  const SummedOver sums = summed_over(Layout::parse(layout).with(exchange), pack);
  const auto axes = [](const std::vector<AxisKind>& of) {
    std::string names;
    for (const AxisKind axis : of) names += fmt::format("{}{}", names.empty() ? "" : ",", name(axis));
    return names;
  };
  std::string text;
  for (const std::vector<AxisKind>& group : sums.replica) text += fmt::format("{}{}", text.empty() ? "" : ", then ", axes(group));
  return fmt::format("{}{}; data {}", text, sums.at_owners ? " at owners" : "", axes(sums.data));
}

TEST(Place, GradientsAreSummedOverRanksWithOtherTokens) {
  EXPECT_EQ(sums_of("dp=2,tp=2,sp=2", PackKind::attention), "sp; data dp");
  EXPECT_EQ(sums_of("dp=2,tp=2,tsp=2", PackKind::mlp), "tsp at owners; data dp");
  EXPECT_EQ(sums_of("zero3=2", PackKind::mlp), "zero3 at owners; data dp");
  EXPECT_EQ(sums_of("tp=2,sp=2", PackKind::replicated), "sp; data dp");
  EXPECT_EQ(sums_of("tp=2,sp=2", PackKind::biases), "sp, then tp; data dp");
  EXPECT_EQ(sums_of("tp=2,sp=2", PackKind::embedding), "sp; data dp");
  EXPECT_EQ(sums_of("tsp=2", PackKind::head), "tsp at owners; data dp");
  EXPECT_EQ(sums_of("tp=2,sp=2", PackKind::replicated, TensorExchange::sequence), "sp,tp; data dp");
  EXPECT_EQ(sums_of("tp=2,sp=2", PackKind::biases, TensorExchange::sequence), "sp,tp; data dp");
  EXPECT_EQ(sums_of("tp=2,sp=2", PackKind::head, TensorExchange::sequence), "sp,tp at owners; data dp");
}

}  // namespace
}  // namespace tsprun::detail::test::place_test
