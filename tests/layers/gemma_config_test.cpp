// Configurations of Gemma's families: their published files, and what is refused by name.
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::gemma_config_test {
namespace {

using nlohmann::json;
using test::elements_of;
using test::expect_read_back;
using test::parse;

/// Gemma 2B's config.json as the hub has it.
json gemma() {
  return json::parse(R"({
    "architectures": ["GemmaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 2,
    "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
    "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0",
    "use_cache": true, "vocab_size": 256000})");
}

TEST(GemmaConfig, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(gemma());
  expect_read_back(gemma());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'506'172'416U);  // as Hugging Face counts them
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_TRUE(c.gains_from_one);
  EXPECT_EQ(c.embedding_factor(), std::sqrt(2048.0));
  EXPECT_EQ(c.attention_factor({}), 1 / 16.0);
  json object = gemma();
  object.erase("head_dim");
  EXPECT_EQ(parse(object).config.head_dim, 256U);
}

/// hidden_activation counts; in files without it, whatever form of GeLU hidden_act names, the tanh form is meant.
TEST(GemmaConfig, MeansTheTanhFormUnlessHiddenActivationSaysOtherwise) {
  json object = gemma();
  for (const char* other : {"gelu", "gelu_pytorch_tanh"}) {
    object["hidden_act"] = other;
    EXPECT_EQ(parse(object).config.mlp, Mlp::geglu_tanh) << other;
  }
  object.erase("hidden_act");
  object.erase("hidden_activation");
  EXPECT_EQ(parse(object).config.mlp, Mlp::geglu_tanh);
  object["hidden_act"] = "silu";
  EXPECT_REFUSED(parse(object), "\"hidden_act\": expected \"gelu_pytorch_tanh\"", "silu");
  object["hidden_activation"] = "gelu";
  EXPECT_EQ(parse(object).config.mlp, Mlp::geglu);
  const json written = json::parse(hugging_face_json(parse(object).config, "float32"));
  EXPECT_EQ(written.at("hidden_act"), "gelu");  // as transformers 5 reads it
  EXPECT_EQ(written.at("hidden_activation"), "gelu");
  expect_read_back(parse(object).config);
}

/// Files say the activation twice, for transformers 4 and 5.
TEST(GemmaConfig, WritesTheActivationThatItComputesUnderBothNames) {
  json object = gemma();
  for (const auto& [hidden_act, hidden_activation, written] :
       std::vector<std::array<json, 3>>{{"gelu", nullptr, "gelu_pytorch_tanh"}, {"gelu_pytorch_tanh", "gelu", "gelu"}}) {
    object["hidden_act"] = hidden_act;
    object["hidden_activation"] = hidden_activation;
    const json again = json::parse(hugging_face_json(parse(object).config, "float32", object.dump()));
    EXPECT_EQ(again.at("hidden_act"), written);
    EXPECT_EQ(again.at("hidden_activation"), written);
  }
}

TEST(GemmaConfig, RefusesWhatChangesTheComputationByName) {
  const std::vector<std::pair<std::string, json>> bad = {
      {"use_bidirectional_attention", true}, {"hidden_activation", "relu"}, {"final_logit_softcapping", 30.0},
      {"query_pre_attn_scalar", 256},        {"sliding_window", 4096},      {"mlp_bias", true}};
  for (const auto& [field, value] : bad) {
    json object = gemma();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
}

/// Gemma 2 2B's config.json as the hub has it.
json gemma2() {
  return json::parse(R"({
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
    "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": true,
    "vocab_size": 256000})");
}

TEST(Gemma2Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(gemma2());
  expect_read_back(gemma2());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'614'341'888U);  // as Hugging Face counts them
  EXPECT_EQ(c.layer(0).norms, NormPlaces::around);
  EXPECT_EQ((std::vector<std::size_t>{c.layer(0).window, c.layer(1).window, c.layer(24).window, c.layer(25).window}),
            (std::vector<std::size_t>{4096, 0, 4096, 0}));
  EXPECT_EQ((std::vector<double>{c.layer(0).score_cap, c.layer(1).score_cap, c.logit_cap, c.attention_factor({})}),
            (std::vector<double>{50, 50, 30, 1 / 16.0}));
  json object = gemma2();
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "sliding_window"})
    object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(c));
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window"}) object[field] = nullptr;
  object["query_pre_attn_scalar"] = 144;  // as the 27 B model has it
  const ModelConfig without = parse(object).config;
  EXPECT_EQ((std::vector<double>{without.layer(0).score_cap, without.logit_cap, without.attention_factor({})}),
            (std::vector<double>{0, 0, 1 / 12.0}));
  EXPECT_EQ(without.layer(0).window, 0U);
  expect_read_back(without);
  object["sliding_window"] = 7;
  object["sliding_window_pattern"] = 3;  // which transformers doesn't know of such models
  EXPECT_EQ(parse(object).warnings.size(), 1U);
  EXPECT_EQ(parse(object).config.layer(1).window, 0U);
  object.erase("sliding_window_pattern");
  object["layer_types"] = json(26, "full_attention");
  object["layer_types"][25] = "sliding_attention";
  EXPECT_EQ(parse(object).config.layer(0).window, 0U);
  EXPECT_EQ(parse(object).config.layer(25).window, 7U);
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}) {
    object = gemma2();
    object[field] = -1;
    EXPECT_REFUSED(parse(object), field, "positive");
  }
}

/// Gemma 3 1B's config.json as the hub has it.
json gemma3() {
  return json::parse(R"({
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
    "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": null,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
    "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": true,
    "vocab_size": 262144})");
}

TEST(Gemma3Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(gemma3());
  expect_read_back(gemma3());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 999'885'952U);  // as Hugging Face counts them
  for (std::size_t layer = 0; layer < 26; ++layer) {
    const bool full = layer % 6 == 5;
    EXPECT_EQ(c.layer(layer).window, full ? 0U : 512U) << layer;
    EXPECT_EQ(c.layer(layer).local_rotary, !full) << layer;
    EXPECT_EQ(c.layer(layer).score_cap, 0);
  }
  EXPECT_EQ((std::vector<double>{c.rope_theta, c.local_rope_theta, c.logit_cap, c.attention_factor({})}),
            (std::vector<double>{1e6, 1e4, 0, 1 / 16.0}));
  json object = gemma3();
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "rope_local_base_freq",
                            "rope_scaling", "rope_theta", "sliding_window_pattern"})
    object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(c));
  object["sliding_window_pattern"] = 1;
  EXPECT_EQ(parse(object).config.layer(0).window, 0U);
  expect_read_back(object);
  object["layer_types"] = json(26, "sliding_attention");
  object["layer_types"][1] = "full_attention";
  object["sliding_window_pattern"] = 6;  // means nothing then
  EXPECT_TRUE(parse(object).warnings.empty());
  EXPECT_TRUE(parse(object).config.layer(5).local_rotary);
  EXPECT_FALSE(parse(object).config.layer(1).local_rotary);
  object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  object["final_logit_softcapping"] = 30.0;
  expect_read_back(parse(object).config);
  object["sliding_window"] = nullptr;
  EXPECT_REFUSED(parse(object), "\"sliding_window\": expected a number of tokens");
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{
           {"attn_logit_softcapping", 50.0}, {"rope_local_base_freq", 5e-324}, {"rope_local_base_freq", 0.5}}) {
    object = gemma3();
    object[field] = value;
    EXPECT_REFUSED(parse(object), field);
  }
}

/// As transformers 5 writes it.
TEST(Gemma3Config, HasRotaryPositionsByKindsOfLayers) {
  json object = gemma3();
  for (const char* field : {"rope_local_base_freq", "rope_scaling", "rope_theta"}) object.erase(field);
  json& kinds = object["rope_parameters"];
  kinds["full_attention"] = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}};
  kinds["sliding_attention"] = {{"rope_type", "default"}, {"rope_theta", 2e4}};
  const LoadedConfig loaded = parse(object);
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ((std::vector<double>{loaded.config.rope_theta, loaded.config.local_rope_theta, loaded.config.rope_scaling.factor}),
            (std::vector<double>{2e6, 2e4, 8}));
  expect_read_back(object);
  EXPECT_FALSE(json::parse(hugging_face_json(loaded.config, "float32", object.dump())).contains("rope_theta"));  // said once
  kinds["full_attention"].erase("rope_theta");
  kinds["sliding_attention"] = nullptr;
  EXPECT_EQ((std::vector<double>{parse(object).config.rope_theta, parse(object).config.local_rope_theta}),
            (std::vector<double>{1e6, 1e4}));
  object["rope_local_base_freq"] = 3e4;
  EXPECT_EQ(parse(object).config.local_rope_theta, 3e4);

  kinds["sliding_attention"] = {{"rope_theta", 2e4}};
  EXPECT_REFUSED(parse(object), "rope_parameters.sliding_attention.rope_theta", "30000 as rope_local_base_freq says");
  object.erase("rope_local_base_freq");
  kinds["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_REFUSED(parse(object), "rope_parameters.sliding_attention.rope_type", "no rope scaling");
  kinds["sliding_attention"] = 5;
  EXPECT_REFUSED(parse(object), "rope_parameters.sliding_attention", "an object");
  kinds.erase("sliding_attention");
  kinds["chunked_attention"] = json::object();
  EXPECT_REFUSED(parse(object), "rope_parameters.chunked_attention", "no such kind of layers");
  kinds.erase("chunked_attention");
  object["rope_theta"] = 3e6;
  kinds["full_attention"]["rope_theta"] = 2e6;
  EXPECT_REFUSED(parse(object), "rope_parameters.full_attention.rope_theta", "3000000 as rope_theta says");
  object = gemma2();
  object["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  EXPECT_REFUSED(parse(object), "rope_parameters.full_attention", "one kind");
}

}  // namespace
}  // namespace tsprun::detail::gemma_config_test
