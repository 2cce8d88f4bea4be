// Configurations of Gemma 4: files as the hub has them, layers that are unlike in sizes, and what is refused by name.
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::gemma4_config_test {
namespace {

using nlohmann::json;
using test::elements_of;
using test::expect_read_back;
using test::parse;

/// A dense model's file as transformers 5 writes it, with every field of the family.
json dense() {
  return json::parse(R"({
    "architectures": ["Gemma4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "attention_k_eq_v": true,
    "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": false, "eos_token_id": 1, "final_logit_softcapping": 30.0,
    "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376,
    "hidden_size_per_layer_input": 0, "initializer_range": 0.02, "intermediate_size": 21504, "max_position_embeddings": 262144,
    "model_type": "gemma4_text", "moe_intermediate_size": null, "num_attention_heads": 32, "num_experts": null,
    "num_global_key_value_heads": 4, "num_hidden_layers": 60, "num_key_value_heads": 16, "num_kv_shared_layers": 0,
    "pad_token_id": 0, "rms_norm_eps": 1e-06,
    "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "sliding_window": 1024, "tie_word_embeddings": true, "top_k_experts": null, "transformers_version": "5.5.0",
    "use_bidirectional_attention": "vision", "use_cache": true, "use_double_wide_mlp": false, "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144})");
}

TEST(Gemma4Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(dense());
  expect_read_back(dense());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  for (std::size_t i = 0; i < 60; ++i) {
    const LayerSpec& layer = c.layer(i);
    const bool full = i % 6 == 5;
    EXPECT_EQ(layer.window, full ? 0U : 1024U) << i;
    EXPECT_EQ(layer.local_rotary, !full) << i;
    EXPECT_EQ(layer.head_dim, full ? 512U : 0U) << i;
    EXPECT_EQ(layer.kv_heads, full ? 4U : 0U) << i;
    EXPECT_EQ(layer.value_is_key, full) << i;
    EXPECT_TRUE(layer.norms_values && layer.scales_output && layer.query_key_norm == QueryKeyNorm::heads) << i;
    EXPECT_EQ(layer.norms, NormPlaces::around) << i;
  }
  EXPECT_FALSE(c.gains_from_one);
  EXPECT_EQ(c.attention_multiplier, 1);
  EXPECT_EQ(c.logit_cap, 30);
  EXPECT_EQ(c.local_rope_theta, 1e4);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.rope_scaling, (RopeScaling{.kind = RopeScaling::Kind::proportional, .turned_part = 0.25}));
  // Embedding and final norm; 50 layers with a window and 10 without, each with four norms of h, an MLP and a scalar.
  const std::size_t h = 5376;
  const std::size_t each = 4 * h + 3 * h * 21504 + 1;
  const std::size_t windowed = each + 2 * h * 32 * 256 + 2 * h * 16 * 256 + 2 * 256;
  const std::size_t full = each + 2 * h * 32 * 512 + h * 4 * 512 + 2 * 512;
  EXPECT_EQ(elements_of(c), (262144 + 1) * h + 50 * windowed + 10 * full);
}

/// Only a part of the pairs turns, by the frequencies that the whole head has.
TEST(Gemma4Config, RotatesAPartInProportion) {
  const RopeScaling scaling{.kind = RopeScaling::Kind::proportional, .factor = 2, .turned_part = 0.25};
  const std::vector<double> found = rope_frequencies(1e6, scaling, 512);
  ASSERT_EQ(found.size(), 256U);
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_DOUBLE_EQ(found[i], i < 64 ? std::pow(1e6, -static_cast<double>(i) / 256) / 2 : 0) << i;
  const auto turned = [](double part, std::size_t dims) {
    return std::ranges::count_if(rope_frequencies(1e4, {.kind = RopeScaling::Kind::proportional, .turned_part = part}, dims),
                                 [](double each) { return each != 0; });
  };
  EXPECT_EQ(turned(0.5, 6), 1);  // of half pairs none turns
  EXPECT_EQ(turned(0.7, 6), 2);
  EXPECT_EQ(turned(1, 6), 3);
}

TEST(Gemma4Config, UsualValuesAreHuggingFaces) {
  json object = dense();
  object["num_attention_heads"] = 8;
  for (const char* field :
       {"attention_bias", "attention_k_eq_v", "final_logit_softcapping", "global_head_dim", "head_dim", "hidden_activation",
        "max_position_embeddings", "num_global_key_value_heads", "num_key_value_heads", "num_kv_shared_layers", "rms_norm_eps",
        "rope_parameters", "sliding_window", "tie_word_embeddings", "use_double_wide_mlp", "use_bidirectional_attention",
        "hidden_size_per_layer_input", "vocab_size_per_layer_input"})
    object.erase(field);
  const ModelConfig c = parse(object).config;
  EXPECT_EQ((std::vector<std::size_t>{c.head_dim, c.kv_heads, c.max_positions, c.layer(0).window, c.layer(5).head_dim,
                                      c.layer(5).kv_heads, c.layer_input}),
            (std::vector<std::size_t>{256, 4, 131072, 512, 512, 0, 256}));
  EXPECT_EQ(c.rope_scaling.turned_part, 0.25);
  EXPECT_EQ((std::vector<double>{c.rope_theta, c.local_rope_theta, c.logit_cap}), (std::vector<double>{1e6, 1e4, 0}));
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.layer(5).value_is_key);
  EXPECT_TRUE(c.layer(0).takes_input);
  expect_read_back(object);
  object["global_head_dim"] = nullptr;  // no other than head_dim
  EXPECT_EQ(parse(object).config.layer(5).head_dim, 0U);
  object["num_global_key_value_heads"] = 2;  // which counts with attention_k_eq_v alone
  EXPECT_EQ(parse(object).config.layer(5).kv_heads, 0U);
  object["attention_k_eq_v"] = true;
  EXPECT_EQ(parse(object).config.layer(5).kv_heads, 2U);
}

/// Later versions of transformers write sizes of full layers by number, instead of global_head_dim and
/// num_global_key_value_heads.
TEST(Gemma4Config, SizesOfFullLayersMayStandByLayer) {
  json object = dense();
  object["num_hidden_layers"] = 12;
  const LayerSpecs expected = parse(object).config.specs;
  object.erase("global_head_dim");
  object.erase("num_global_key_value_heads");
  const json sizes = {{"head_dim", 512}, {"num_key_value_heads", 4}};
  object["per_layer_config"] = {{"05", sizes}, {"11", sizes}};
  EXPECT_EQ(parse(object).config.specs, expected);
  EXPECT_TRUE(parse(object).warnings.empty());
  expect_read_back(object);
  object["per_layer_config"] = {{"5", {{"head_dim", 512}}}, {"11", {{"head_dim", 512}}}};
  EXPECT_EQ(parse(object).config.layer(5).kv_heads, 0U);
  for (const json& wrong : {json{{"05", sizes}}, json{{"05", sizes}, {"11", sizes}, {"00", sizes}},
                            json{{"05", sizes}, {"11", {{"head_dim", 256}}}}, json{{"05", sizes}, {"12", sizes}}, json::array(),
                            json{{"05", {{"intermediate_size", 7}}}, {"11", {{"intermediate_size", 7}}}}}) {
    object["per_layer_config"] = wrong;
    EXPECT_REFUSED(parse(object), "\"per_layer_config\"");
  }
}

/// The last layer is a full one, whatever the file says.
TEST(Gemma4Config, LastLayerIsFull) {
  json object = dense();
  object["num_hidden_layers"] = 3;
  EXPECT_EQ(parse(object).config.layer(2).window, 0U);
  EXPECT_EQ(parse(object).config.layer(1).window, 1024U);
  object["layer_types"] = json(3, "sliding_attention");
  const ModelConfig c = parse(object).config;
  EXPECT_EQ(c.layer(1).window, 1024U);
  EXPECT_EQ(c.layer(2).window, 0U);
  EXPECT_TRUE(c.layer(2).value_is_key && !c.layer(1).value_is_key);
  expect_read_back(object);
  object["layer_types"].push_back("sliding_attention");
  EXPECT_REFUSED(parse(object), "\"layer_types\"");
}

/// Of 60 layers, every sixth of which is a full one, the last ten take keys and values of the last of their kind among the
/// others.
TEST(Gemma4Config, LastLayersTakeKeysAndValuesOfOthers) {
  json object = dense();
  object["num_kv_shared_layers"] = 10;
  object["use_double_wide_mlp"] = true;
  const ModelConfig c = parse(object).config;
  EXPECT_EQ(c.lender_of(59), 47U);
  EXPECT_EQ(c.lender_of(53), 47U);
  for (const std::size_t layer : {50U, 51U, 52U, 54U, 58U}) EXPECT_EQ(c.lender_of(layer), 49U) << layer;
  for (std::size_t layer = 0; layer < 60; ++layer) {
    const LayerSpec& spec = c.layer(layer);
    EXPECT_EQ(spec.projects_keys(), layer < 50) << layer;
    EXPECT_EQ(spec.lends, layer == 47 || layer == 49) << layer;
    EXPECT_EQ(c.intermediate_of(spec), (layer < 50 ? 1U : 2U) * c.intermediate) << layer;
  }
  for (const Parameter& parameter : block_parameters(c, 55)) {
    EXPECT_NE(parameter.role, ParameterRole::key);
    EXPECT_NE(parameter.role, ParameterRole::value);
    EXPECT_NE(parameter.role, ParameterRole::key_norm);
  }
  expect_read_back(object);
}

TEST(Gemma4Config, RefusesWhatIsNotComputedByName) {
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{{"enable_moe_block", true},
                                                                              {"num_kv_shared_layers", 60},
                                                                              {"num_kv_shared_layers", 61},
                                                                              {"use_bidirectional_attention", "all"},
                                                                              {"use_bidirectional_attention", true},
                                                                              {"rope_theta", 1e4},
                                                                              {"rope_scaling", {{"rope_type", "linear"}}},
                                                                              {"rope_local_base_freq", 1e4},
                                                                              {"partial_rotary_factor", 0.5},
                                                                              {"per_layer_config", json::object()},
                                                                              {"sliding_window", nullptr},
                                                                              {"hidden_activation", "silu"},
                                                                              {"query_pre_attn_scalar", 256},
                                                                              {"attn_logit_softcapping", 50.0},
                                                                              {"num_key_value_heads", 5},
                                                                              {"num_global_key_value_heads", 5},
                                                                              {"global_head_dim", 511}}) {
    json object = dense();
    object[field] = value;
    EXPECT_REFUSED(parse(object), field);
  }
  json object = dense();
  object["hidden_size_per_layer_input"] = 256;
  EXPECT_EQ(parse(object).config.layer_input, 256U);
  object["vocab_size_per_layer_input"] = 1000;
  EXPECT_REFUSED(parse(object), "\"vocab_size_per_layer_input\"", "262144");
}

TEST(Gemma4Config, RotaryPositionsAreSaidByKindsOfLayers) {
  json object = dense();
  json& kinds = object["rope_parameters"];
  kinds["full_attention"]["factor"] = 8.0;
  EXPECT_EQ(parse(object).config.rope_scaling.factor, 8);
  expect_read_back(object);
  kinds["full_attention"] = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse(object).config.rope_scaling.kind, RopeScaling::Kind::linear);
  expect_read_back(object);
  kinds["full_attention"] = {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}};
  EXPECT_REFUSED(parse(object), "rope_parameters.full_attention.partial_rotary_factor");
  kinds["full_attention"] = {{"rope_type", "proportional"}, {"partial_rotary_factor", 1.5}, {"rope_theta", 1e6}};
  EXPECT_REFUSED(parse(object), "rope_parameters.full_attention.partial_rotary_factor", "up to 1");
  kinds["full_attention"] = {{"rope_type", "proportional"}};
  EXPECT_REFUSED(parse(object), "\"rope_parameters\"", "rope_theta");
  kinds["full_attention"]["rope_theta"] = 1e6;
  kinds["sliding_attention"]["partial_rotary_factor"] = 0.5;
  EXPECT_REFUSED(parse(object), "rope_parameters.sliding_attention.partial_rotary_factor");
  kinds["sliding_attention"] = {{"rope_type", "proportional"}, {"rope_theta", 1e4}};
  EXPECT_REFUSED(parse(object), "rope_parameters.sliding_attention.rope_type");
  kinds.erase("sliding_attention");
  EXPECT_REFUSED(parse(object), "\"rope_parameters\"", "sliding_attention");
  object["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  EXPECT_REFUSED(parse(object), "\"rope_parameters\"");
}

/// A scaling of this family alone.
TEST(Gemma4Config, OtherFamiliesDoNotScaleInProportion) {
  const json object = {{"model_type", "qwen3"},
                       {"hidden_size", 64},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"head_dim", 16},
                       {"intermediate_size", 64},
                       {"vocab_size", 100},
                       {"rope_scaling", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}}}};
  EXPECT_REFUSED(parse(object), "\"rope_scaling.rope_type\"", "proportional");
}

TEST(Gemma4Config, TextModelOfOneThatSeesImages) {
  json text = dense();
  for (const char* field : {"architectures", "tie_word_embeddings", "vocab_size", "num_hidden_layers"}) text.erase(field);
  const json object = {{"architectures", {"Gemma4ForConditionalGeneration"}},
                       {"model_type", "gemma4"},
                       {"text_config", text},
                       {"tie_word_embeddings", true},
                       {"vision_config", {{"hidden_size", 768}}},
                       {"audio_config", nullptr}};
  const LoadedConfig loaded = parse(object);
  EXPECT_TRUE(loaded.sees_images);
  EXPECT_EQ(loaded.config.type->name, "gemma4_text");
  EXPECT_EQ((std::vector<std::size_t>{loaded.config.vocabulary, loaded.config.layers}), (std::vector<std::size_t>{262144, 30}));
  const json written = json::parse(hugging_face_json(loaded.config, "bfloat16", object.dump()));
  EXPECT_EQ(written.at("model_type"), "gemma4_text");
  EXPECT_TRUE(parse(written).config.same_model(loaded.config));
}

}  // namespace
}  // namespace tsprun::detail::gemma4_config_test
