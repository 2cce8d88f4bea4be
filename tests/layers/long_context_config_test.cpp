// Configurations of families that come with rope scalings of their own: their published files, and what is refused by name.
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::long_context_config_test {
namespace {

using nlohmann::json;
using test::elements_of;
using test::expect_read_back;
using test::parse;

/// Phi-4-mini's config.json as the hub has it, but for longrope's factors, which are 48 different ones there.
json phi3() {
  json object = json::parse(R"({
    "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 199999,
    "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
    "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": {"type": "longrope"},
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 200064})");
  for (int pair = 0; pair < 48; ++pair) {
    object["rope_scaling"]["short_factor"].push_back(1);
    object["rope_scaling"]["long_factor"].push_back(1 + pair);
  }
  return object;
}

TEST(Phi3Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(phi3());
  expect_read_back(phi3());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 3'836'021'760U);  // as Hugging Face counts them
  EXPECT_EQ(c.rotary_dims({}), 96U);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::longrope);
  EXPECT_EQ(c.rope_scaling.original_positions, 4096U);
  EXPECT_NEAR(c.rope_scaling.attention_factor, std::sqrt(1 + 5.0 / 12), 1e-15);  // ln 32 over ln 4096
  EXPECT_EQ(c.rope_scaling.long_factors.back(), 48);
  std::map<std::string, std::vector<std::size_t>> shapes;
  for (const Parameter& parameter : model_parameters(c)) shapes[parameter.name] = parameter.shape;
  EXPECT_EQ(shapes.at("model.layers.31.self_attn.qkv_proj.weight"), (std::vector<std::size_t>{5120, 3072}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.gate_up_proj.weight"), (std::vector<std::size_t>{16384, 3072}));
  EXPECT_FALSE(shapes.contains("model.layers.0.mlp.up_proj.weight"));
  for (const char* name : {"su", "yarn"}) {  // as older files have it
    json object = phi3();
    object["rope_scaling"]["type"] = name;
    EXPECT_TRUE(parse(object).config.same_model(c));
  }
  json object = phi3();
  object["rope_parameters"] = object["rope_scaling"];
  object["rope_parameters"]["rope_type"] = "longrope";
  object["rope_parameters"]["partial_rotary_factor"] = 0.75;
  object["rope_parameters"]["factor"] = 32;
  for (const char* field : {"rope_scaling", "partial_rotary_factor", "original_max_position_embeddings"}) object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(c));
  object["resid_pdrop"] = 0.125;
  EXPECT_EQ(parse(object).config.residual_dropout, 0.125);
  EXPECT_EQ(parse(object).config.layer(31).window, 262144U);
  object["sliding_window"] = 2047;
  EXPECT_EQ(parse(object).config.layer(0).window, 2047U);
  expect_read_back(parse(object).config);
  object["sliding_window"] = nullptr;
  EXPECT_EQ(parse(object).config.layer(0).window, 0U);
}

TEST(Phi3Config, WritesAFactorOfItsOwnOnCosines) {
  json object = phi3();
  object["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(parse(object).config.rope_scaling.attention_factor, 1.5);
  expect_read_back(parse(object).config);
  const json usual = json::parse(hugging_face_json(parse(phi3()).config, "float32"));
  EXPECT_EQ(usual.at("rope_scaling").size(), 3U);  // transformers 4 accepts these alone
  EXPECT_EQ(usual.at("original_max_position_embeddings"), 4096);
}

TEST(Phi3Config, RefusesWhatChangesTheComputationByName) {
  const std::vector<std::pair<std::string, json>> bad = {{"sliding_window", "none"},
                                                         {"embd_pdrop", 0.1},
                                                         {"attention_bias", true},
                                                         {"lm_head_bias", true},
                                                         {"full_attn_mod", 2},
                                                         {"partial_rotary_factor", 0.5},  // lists of other lengths
                                                         {"original_max_position_embeddings", 0},
                                                         {"original_max_position_embeddings", 1},
                                                         {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}};
  for (const auto& [field, value] : bad) {
    json object = phi3();
    object[field] = value;
    EXPECT_THROW(parse(object), Error) << field << " " << value;
  }
  json object = phi3();
  object["rope_scaling"]["long_factor"].erase(0);
  EXPECT_REFUSED(parse(object), "rope_scaling.long_factor", "48");
  object = phi3();
  object["rope_scaling"]["short_factor"][3] = 0;
  EXPECT_REFUSED(parse(object), "rope_scaling.short_factor[3]\": expected a positive finite number");
  object = phi3();
  object["rope_scaling"]["factor"] = 16;
  EXPECT_REFUSED(parse(object), "rope_scaling.factor", "expected 32");
  object = phi3();
  object["rope_scaling"]["original_max_position_embeddings"] = 2048;
  EXPECT_REFUSED(parse(object), "original_max_position_embeddings", "2048 as rope_scaling says");
}

/// The text model of Ministral 3 3B, as transformers writes it.
json ministral3() {
  return json::parse(R"({
    "architectures": ["Ministral3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "bfloat16",
    "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
    "num_hidden_layers": 26, "num_key_value_heads": 8, "pad_token_id": 11, "rms_norm_eps": 1e-05, "rope_parameters": {
      "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "max_position_embeddings": 262144,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
      "rope_type": "yarn", "type": "yarn"},
    "sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.0.0", "use_cache": true,
    "vocab_size": 131072})");
}

TEST(Ministral3Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(ministral3());
  expect_read_back(ministral3());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(loaded.config.rope_scaling, (RopeScaling{.kind = RopeScaling::Kind::yarn,
                                                     .factor = 16,
                                                     .original_positions = 16384,
                                                     .beta_fast = 32,
                                                     .beta_slow = 1,
                                                     .query_growth = 0.1,
                                                     .attention_factor = 1}));
  json object = ministral3();
  object.erase("head_dim");
  EXPECT_EQ(parse(object).config.head_dim, 128U);
  object["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_EQ(parse(object).config.rope_scaling.query_growth, 0);
  // Without the field transformers fails.
  EXPECT_EQ(json::parse(hugging_face_json(parse(object).config, "float32")).at("rope_scaling").at("llama_4_scaling_beta"), 0);
  object["rope_parameters"]["llama_4_scaling_beta"] = -1;
  EXPECT_REFUSED(parse(object), "rope_parameters.llama_4_scaling_beta");
  object["rope_parameters"] = {{"rope_type", "default"}};
  expect_read_back(parse(object).config);
  object.erase("rope_parameters");
  EXPECT_REFUSED(parse(object), "\"rope_parameters\" is missing");
  object = ministral3();
  EXPECT_EQ(parse(object).config.layer(0).window, 0U);
  object["sliding_window"] = 4096;
  EXPECT_EQ(parse(object).config.layer(0).window, 4096U);
  object.erase("sliding_window");
  EXPECT_EQ(parse(object).config.layer(0).window, 0U);
}

}  // namespace
}  // namespace tsprun::detail::long_context_config_test
