// Configurations of families besides Llama's: their published files, and what is refused by name.
#include "layers/parameters/parameters.h"
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::families_config_test {
namespace {

using nlohmann::json;
using test::expect_read_back;
using test::parse;

/// Qwen2.5 0.5B's config.json as the hub has it.
json qwen2() {
  return json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
    "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})");
}

std::size_t elements_of(const ModelConfig& config) {
  std::size_t elements = 0;
  for (const Parameter& parameter : model_parameters(config)) elements += parameter.elements();
  return elements;
}

TEST(Qwen2Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(qwen2());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(loaded.config.layer(0).biases, (Biases{.query = true, .key = true, .value = true}));
  EXPECT_EQ(elements_of(loaded.config), 494'032'768U);  // as Hugging Face counts them
  EXPECT_EQ(loaded.config.projection_vectors(), 24U * (896 + 2 * 128));
  json object = qwen2();
  object.erase("use_sliding_window");  // false by default
  EXPECT_TRUE(parse(object).config.same_model(loaded.config));
  object = qwen2();
  object["use_mrope"] = true;
  EXPECT_REFUSED(parse(object), "\"use_mrope\"");
  object = qwen2();
  object.erase("num_key_value_heads");
  EXPECT_REFUSED(parse(object), "\"num_key_value_heads\"", "divisor of num_attention_heads 14", "found 32");
  object["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(object).config.kv_heads, 14U);
}

/// Qwen3 0.6B's config.json as the hub has it.
json qwen3() {
  return json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})");
}

TEST(Qwen3Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(qwen3());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_TRUE(loaded.config.layer(0).query_key_norm);
  EXPECT_EQ(loaded.config.layer(0).biases, Biases{});
  EXPECT_EQ(elements_of(loaded.config), 596'049'920U);  // as Hugging Face counts them
  json object = qwen3();
  object.erase("head_dim");
  EXPECT_EQ(parse(object).config.head_dim, 128U);
  object["attention_bias"] = true;
  EXPECT_REFUSED(parse(object), "\"attention_bias\"", "expected false");
}

/// Mistral 7B v0.3's config.json as the hub has it.
json mistral() {
  return json::parse(R"({
    "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0", "use_cache": true,
    "vocab_size": 32768})");
}

TEST(MistralConfig, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(mistral());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(elements_of(loaded.config), 7'248'023'552U);  // as Hugging Face counts them
  EXPECT_EQ(loaded.config.layer(0).window, 0U);
  json object = mistral();
  object.erase("num_key_value_heads");
  EXPECT_EQ(parse(object).config.kv_heads, 8U);
}

/// SmolLM3 3B's config.json as the hub has it, but for the lists, which are 36 long there.
json smollm3() {
  json object = json::parse(R"({
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false,
    "model_type": "smollm3", "no_rope_layer_interval": 4, "num_attention_heads": 16, "num_hidden_layers": 36,
    "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 5000000.0, "sliding_window": null, "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0",
    "use_cache": false, "use_sliding_window": false, "vocab_size": 128256})");
  for (int layer = 0; layer < 36; ++layer) {
    object["layer_types"].push_back("full_attention");
    object["no_rope_layers"].push_back(layer % 4 == 3 ? 0 : 1);
  }
  return object;
}

/// The layers that rotate, from the first: "1110" for four.
std::string rotating(const ModelConfig& config) {
  std::string layers;
  for (std::size_t layer = 0; layer < config.layers; ++layer) layers += config.layer(layer).rotary_positions ? '1' : '0';
  return layers;
}

TEST(SmolLM3Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(smollm3());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(elements_of(loaded.config), 3'075'098'624U);  // as Hugging Face counts them
  EXPECT_TRUE(loaded.config.tied_embeddings);
  EXPECT_EQ(rotating(loaded.config).substr(0, 9), "111011101");
  json object = smollm3();
  object.erase("no_rope_layers");
  EXPECT_TRUE(parse(object).config.same_model(loaded.config));
  object.erase("no_rope_layer_interval");
  EXPECT_TRUE(parse(object).config.same_model(loaded.config));
  object["no_rope_layer_interval"] = 2;
  object["num_hidden_layers"] = 5;
  EXPECT_EQ(rotating(parse(object).config), "10101");
  object["no_rope_layers"] = {0, 1, 1, 0, 1, 0};  // it may be longer
  EXPECT_EQ(rotating(parse(object).config), "01101");
  object.erase("rope_theta");
  EXPECT_EQ(parse(object).config.rope_theta, 2e6);
}

TEST(SmolLM3Config, RefusesWhatChangesTheComputationByName) {
  json object = smollm3();
  object["no_rope_layers"][2] = 2;
  EXPECT_REFUSED(parse(object), "\"no_rope_layers[2]\": expected 1 (rotary positions) or 0 (none)", "found 2");
  object["no_rope_layers"] = {1, 1, 1};
  EXPECT_REFUSED(parse(object), "\"no_rope_layers\"", "36");
  const std::vector<std::pair<std::string, json>> bad = {{"no_rope_layers", 4},
                                                         {"no_rope_layer_interval", 0},
                                                         {"attention_bias", true},
                                                         {"mlp_bias", true},
                                                         {"attention_dropout", 0.1}};
  for (const auto& [field, value] : bad) {
    object = smollm3();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
}

/// Granite 3.0 2B's config.json as the hub has it.
json granite() {
  return json::parse(R"({
    "architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.1,
    "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "logits_scaling": 8.0,
    "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32,
    "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0.dev0", "use_cache": true, "vocab_size": 49155})");
}

TEST(GraniteConfig, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(granite());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'533'531'648U);  // as Hugging Face counts them
  EXPECT_EQ((std::vector<double>{c.embedding_factor(), c.residual_multiplier, c.attention_factor(), c.logits_factor()}),
            (std::vector<double>{12, 0.22, 1 / 64.0, 1 / 8.0}));
  EXPECT_EQ(c.attention_dropout, 0.1);
  EXPECT_EQ(c.layer(0).biases, Biases{});
  json object = granite();
  object["attention_bias"] = true;
  object["logits_scaling"] = 13;  // whose reciprocal isn't exact
  EXPECT_EQ(parse(object).config.layer(39).biases, (Biases{.query = true, .key = true, .value = true, .output = true}));
  expect_read_back(parse(object).config);
  for (const char* field : {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})
    object.erase(field);
  const ModelConfig without = parse(object).config;
  EXPECT_EQ((std::vector<double>{without.embedding_factor(), without.residual_multiplier, without.attention_factor(),
                                 without.logits_factor()}),
            (std::vector<double>{1, 1, 1, 1}));
}

TEST(GraniteConfig, RefusesWhatChangesTheComputationByName) {
  const std::vector<std::pair<std::string, json>> bad = {
      {"mlp_bias", true},    {"embedding_multiplier", 0}, {"residual_multiplier", -1}, {"attention_multiplier", "1"},
      {"logits_scaling", 0}, {"logit_scale", 2},          {"attention_bias", "yes"},   {"num_local_experts", 8},
      {"hidden_act", "gelu"}};
  for (const auto& [field, value] : bad) {
    json object = granite();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
  for (const char* field : {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
    json object = qwen3();  // other families don't have them
    object[field] = 2;
    EXPECT_REFUSED(parse(object), field);
  }
}

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
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'506'172'416U);  // as Hugging Face counts them
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_TRUE(c.gains_from_one);
  EXPECT_EQ(c.embedding_factor(), std::sqrt(2048.0));
  EXPECT_EQ(c.attention_factor(), 1 / 16.0);
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

/// EXAONE 4.0 1.2B's config.json as the hub has it, but for layer_types, which has 30 entries there.
json exaone4() {
  json object = json::parse(R"({
    "architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 361, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 4096,
    "max_position_embeddings": 65536, "model_type": "exaone4", "num_attention_heads": 32, "num_hidden_layers": 30,
    "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 1000000, "sliding_window": null, "sliding_window_pattern": null, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": true, "vocab_size": 102400})");
  for (int layer = 0; layer < 30; ++layer) object["layer_types"].push_back("full_attention");
  return object;
}

TEST(Exaone4Config, IsReadAsHuggingFaceWritesItUnlessThereIsAWindow) {
  const LoadedConfig loaded = parse(exaone4());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(elements_of(loaded.config), 1'279'391'488U);  // as Hugging Face counts them
  EXPECT_EQ(loaded.config.layer(0).norms, NormPlaces::after);
  EXPECT_TRUE(loaded.config.layer(29).query_key_norm);
  EXPECT_EQ(loaded.config.replicated_parameters(), 61U * 2048 + 30 * 128);
  json object = exaone4();
  object["sliding_window"] = 4096;  // as the 32 B model has it
  EXPECT_REFUSED(parse(object), "\"sliding_window\": expected null");
  object.erase("sliding_window");
  EXPECT_REFUSED(parse(object), "\"sliding_window\" is missing; expected null");
  object = exaone4();
  object["layer_types"][2] = "sliding_attention";
  EXPECT_REFUSED(parse(object), "\"layer_types");
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
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'614'341'888U);  // as Hugging Face counts them
  EXPECT_EQ(c.layer(0).norms, NormPlaces::around);
  EXPECT_EQ((std::vector<std::size_t>{c.layer(0).window, c.layer(1).window, c.layer(24).window, c.layer(25).window}),
            (std::vector<std::size_t>{4096, 0, 4096, 0}));
  EXPECT_EQ((std::vector<double>{c.layer(0).score_cap, c.layer(1).score_cap, c.logit_cap, c.attention_factor()}),
            (std::vector<double>{50, 50, 30, 1 / 16.0}));
  json object = gemma2();
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "sliding_window"})
    object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(c));
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window"}) object[field] = nullptr;
  object["query_pre_attn_scalar"] = 144;  // as the 27 B model has it
  const ModelConfig without = parse(object).config;
  EXPECT_EQ((std::vector<double>{without.layer(0).score_cap, without.logit_cap, without.attention_factor()}),
            (std::vector<double>{0, 0, 1 / 12.0}));
  EXPECT_EQ(without.layer(0).window, 0U);
  expect_read_back(without);
  object["sliding_window"] = 7;
  object["sliding_window_pattern"] = 3;
  const ModelConfig third = parse(object).config;
  EXPECT_EQ((std::vector<std::size_t>{third.layer(0).window, third.layer(1).window, third.layer(2).window}),
            (std::vector<std::size_t>{7, 7, 0}));
  expect_read_back(third);
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
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 999'885'952U);  // as Hugging Face counts them
  for (std::size_t layer = 0; layer < 26; ++layer) {
    const bool full = layer % 6 == 5;
    EXPECT_EQ(c.layer(layer).window, full ? 0U : 512U) << layer;
    EXPECT_EQ(c.layer(layer).local_rotary, !full) << layer;
    EXPECT_EQ(c.layer(layer).score_cap, 0);
  }
  EXPECT_EQ((std::vector<double>{c.rope_theta, c.local_rope_theta, c.logit_cap, c.attention_factor()}),
            (std::vector<double>{1e6, 1e4, 0, 1 / 16.0}));
  json object = gemma3();
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "rope_local_base_freq",
                            "rope_scaling", "rope_theta", "sliding_window_pattern"})
    object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(c));
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
  object = gemma3();
  object["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  EXPECT_REFUSED(parse(object), "rope_parameters");
}

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
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 3'836'021'760U);  // as Hugging Face counts them
  EXPECT_EQ(c.rotary_dims(), 96U);
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

/// StarCoder2 3B's config.json as the hub has it.
json starcoder2() {
  return json::parse(R"({
    "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "attention_softmax_in_fp32": true, "bos_token_id": 0,
    "embedding_dropout": 0.1, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072,
    "initializer_range": 0.018042, "intermediate_size": 12288, "max_position_embeddings": 16384, "mlp_type": "default",
    "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_attention_heads": 24,
    "num_hidden_layers": 30, "num_key_value_heads": 2, "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
    "scale_attention_softmax_in_fp32": true, "scale_attn_weights": true, "sliding_window": 4096, "torch_dtype": "bfloat16",
    "transformers_version": "4.37.0.dev0", "use_bias": true, "use_cache": true, "vocab_size": 49152})");
}

TEST(StarCoder2Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(starcoder2());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(elements_of(loaded.config), 3'030'371'328U);  // as Hugging Face counts them
  EXPECT_TRUE(loaded.config.tied_embeddings);
  EXPECT_EQ(loaded.config.layer(29).window, 4096U);
  EXPECT_EQ(loaded.config.residual_dropout, 0.1);
  expect_read_back(loaded.config);
  json object = starcoder2();
  object["sliding_window"] = nullptr;
  EXPECT_EQ(parse(object).config.layer(0).window, 0U);
  object.erase("sliding_window");
  EXPECT_EQ(parse(object).config.layer(0).window, 0U);
  object["use_bias"] = false;
  EXPECT_EQ(parse(object).config.layer(0).biases, Biases{});
  EXPECT_EQ(elements_of(parse(object).config), 3'030'371'328U - 30 * 22016);
  expect_read_back(parse(object).config);
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{
           {"norm_type", "rms_norm"}, {"mlp_type", "gated"}, {"scale_attn_weights", false}, {"hidden_act", "silu"}}) {
    object = starcoder2();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
}

/// GLM-4-9B-0414's config.json as the hub has it.
json glm4() {
  return json::parse(R"({
    "architectures": ["Glm4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4",
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": true, "vocab_size": 151552})");
}

TEST(Glm4Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(glm4());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 9'400'094'720U);  // as Hugging Face counts them
  EXPECT_EQ(c.rotary_dims(), 64U);
  EXPECT_TRUE(c.interleaved_rotary);
  EXPECT_EQ(c.layer(39).norms, NormPlaces::around);
  EXPECT_EQ(c.layer(39).biases, Biases{});
  json object = glm4();
  for (const char* field : {"attention_bias", "head_dim", "partial_rotary_factor"}) object.erase(field);
  const ModelConfig usual = parse(object).config;
  EXPECT_EQ(usual.layer(0).biases, (Biases{.query = true, .key = true, .value = true}));
  EXPECT_EQ(usual.head_dim, 128U);
  EXPECT_EQ(usual.rotary_dims(), 64U);
  expect_read_back(usual);
  object["mlp_bias"] = true;
  EXPECT_REFUSED(parse(object), "\"mlp_bias\"");
}

/// Command R's config.json as the hub has it.
json cohere() {
  return json::parse(R"({
    "architectures": ["CohereForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 5,
    "eos_token_id": 255001, "hidden_act": "silu", "hidden_size": 8192, "initializer_range": 0.02,
    "intermediate_size": 22528, "layer_norm_eps": 1e-05, "logit_scale": 0.0625, "max_position_embeddings": 8192,
    "model_max_length": 131072, "model_type": "cohere", "num_attention_heads": 64, "num_hidden_layers": 40,
    "num_key_value_heads": 64, "pad_token_id": 0, "rope_theta": 8000000.0, "torch_dtype": "float16",
    "transformers_version": "4.38.2", "use_cache": true, "use_qk_norm": false, "vocab_size": 256000})");
}

TEST(CohereConfig, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(cohere());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 34'980'831'232U);  // as Hugging Face counts them
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_TRUE(c.interleaved_rotary);
  EXPECT_EQ(c.logits_factor(), 1 / 16.0);
  EXPECT_TRUE(c.layer(0).side_by_side());
  json object = cohere();
  object.erase("logit_scale");
  EXPECT_TRUE(parse(object).config.same_model(c));
  const std::vector<std::pair<std::string, json>> bad = {
      {"use_qk_norm", true}, {"logit_scale", 0}, {"partial_rotary_factor", 0.5}, {"mlp_bias", true}, {"num_attention_heads", 60}};
  for (const auto& [field, value] : bad) {
    object = cohere();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
}

/// StableLM 3B's config.json as the hub has it.
json stablelm() {
  return json::parse(R"({
    "architectures": ["StableLmForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
    "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 4096,
    "model_type": "stablelm", "layer_norm_eps": 1e-05, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.38.0", "use_cache": true, "use_qkv_bias": false,
    "vocab_size": 50304})");
}

TEST(StableLmConfig, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(stablelm());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'795'443'200U);  // as Hugging Face counts them
  EXPECT_EQ(c.head_dim, 80U);
  EXPECT_EQ(c.rotary_dims(), 20U);
  EXPECT_EQ(c.norm, Norm::layer);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.layer(0).biases, Biases{});
  json object = stablelm();
  object.erase("partial_rotary_factor");
  object.erase("num_key_value_heads");
  object.erase("use_qkv_bias");
  EXPECT_TRUE(parse(object).config.same_model(c));
  object["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000}, {"partial_rotary_factor", 0.25}};
  EXPECT_TRUE(parse(object).config.same_model(c));
  object["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(parse(object).config.rotary_dims(), 40U);
  object["use_qkv_bias"] = true;
  EXPECT_EQ(parse(object).config.layer(0).biases, (Biases{.query = true, .key = true, .value = true}));
}

TEST(StableLmConfig, RefusesWhatChangesTheComputationByName) {
  const std::vector<std::pair<std::string, json>> bad = {{"qk_layernorm", true},
                                                         {"use_parallel_residual", true},
                                                         {"attention_dropout", 0.1},
                                                         {"hidden_dropout", 0.1},
                                                         {"use_qkv_bias", 1},
                                                         {"partial_rotary_factor", 0},
                                                         {"partial_rotary_factor", 1.5},
                                                         {"partial_rotary_factor", 0.01},
                                                         {"partial_rotary_factor", 0.2626},
                                                         {"hidden_act", "gelu"},
                                                         {"num_attention_heads", 30}};
  for (const auto& [field, value] : bad) {
    json object = stablelm();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
  json object = stablelm();
  object["rope_scaling"] = {{"type", "default"}, {"partial_rotary_factor", 0.5}};
  EXPECT_REFUSED(parse(object), "rope_scaling.partial_rotary_factor", "expected 0.25 as partial_rotary_factor says");
}

/// GPT-2's config.json as the hub has it.
json gpt2() {
  return json::parse(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
    "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
    "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
    "vocab_size": 50257})");
}

TEST(Gpt2Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(gpt2());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(c.type, &model_type("gpt2"));
  EXPECT_EQ((std::vector<std::size_t>{c.hidden, c.layers, c.query_heads, c.kv_heads, c.head_dim, c.intermediate, c.vocabulary,
                                      c.max_positions}),
            (std::vector<std::size_t>{768, 12, 12, 12, 64, 3072, 50257, 1024}));
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.residual_dropout, 0.1);
  EXPECT_EQ(c.embedding_dropout, 0.1);
  EXPECT_EQ(c.attention_dropout, 0.1);
  json other = gpt2();
  other["n_inner"] = 100;
  other["tie_word_embeddings"] = false;
  other["resid_pdrop"] = 0;
  EXPECT_EQ(parse(other).config.intermediate, 100U);
  EXPECT_FALSE(parse(other).config.tied_embeddings);
  EXPECT_EQ(parse(other).config.residual_dropout, 0);
  EXPECT_EQ(c.mlp, Mlp::gelu_tanh);
  other["activation_function"] = "gelu";
  EXPECT_EQ(parse(other).config.mlp, Mlp::gelu);
}

TEST(Gpt2Config, HasTheParametersOfThePublishedModel) {
  std::size_t elements = 0;
  std::map<std::string, std::vector<std::size_t>> shapes;
  const ModelConfig config = parse(gpt2()).config;
  for (const Parameter& parameter : model_parameters(config)) {
    elements += parameter.elements();
    shapes[parameter.name] = parameter.shape;
  }
  EXPECT_EQ(elements, 124'439'808U);  // as Hugging Face counts them
  EXPECT_EQ(shapes.at("h.11.attn.c_attn.weight"), (std::vector<std::size_t>{768, 2304}));
  EXPECT_EQ(shapes.at("h.0.mlp.c_proj.weight"), (std::vector<std::size_t>{3072, 768}));
  EXPECT_EQ(shapes.at("h.0.mlp.c_fc.bias"), (std::vector<std::size_t>{3072}));
  EXPECT_EQ(shapes.at("wpe.weight"), (std::vector<std::size_t>{1024, 768}));
  std::size_t replicated = 0;
  std::size_t projections = 0;
  for (const Parameter& parameter : model_parameters(config)) {
    const bool of_projection = parameter.role == ParameterRole::query_key_value_bias || parameter.role == ParameterRole::up_bias;
    projections += of_projection ? parameter.elements() : 0;
    replicated += !parameter.is_matrix() || parameter.role == ParameterRole::positions ? parameter.elements() : 0;
  }
  EXPECT_EQ(config.replicated_parameters(), replicated);
  EXPECT_EQ(config.projection_vectors(), projections);
}

TEST(Gpt2Config, RefusesWhatChangesTheComputationByName) {
  const std::vector<std::pair<std::string, json>> bad = {{"activation_function", "relu"},
                                                         {"scale_attn_weights", false},
                                                         {"scale_attn_by_inverse_layer_idx", true},
                                                         {"add_cross_attention", true},
                                                         {"n_head", 7},
                                                         {"resid_pdrop", 1.0},
                                                         {"embd_pdrop", -0.1},
                                                         {"attn_pdrop", "none"},
                                                         {"n_embd", 0},
                                                         {"layer_norm_epsilon", 0},
                                                         {"architectures", {"GPT2ForSequenceClassification"}}};
  for (const auto& [field, value] : bad) {
    json object = gpt2();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
}

TEST(EachFamily, NamesTheWeightsOfAllThatItsLayersCompute) {
  for (const ModelType& type : model_types()) {
    SCOPED_TRACE(type.name);
    EXPECT_TRUE(std::ranges::is_sorted(type.weights, {}, &WeightName::role));
    ModelConfig config = find_config("nano").config;
    config.become(type);
    const bool in_one = !type.weight(ParameterRole::query_key_value).empty();
    const bool mlp_in_one = !type.weight(ParameterRole::gate_up).empty();
    for (auto role = ParameterRole::embedding; role <= ParameterRole::head;
         role = static_cast<ParameterRole>(static_cast<int>(role) + 1)) {
      const bool apart = role >= ParameterRole::query && role <= ParameterRole::value_bias;
      const bool together = role == ParameterRole::query_key_value || role == ParameterRole::query_key_value_bias;
      const bool mlp_apart = role == ParameterRole::gate || role == ParameterRole::up;
      const bool mlp_together = role == ParameterRole::gate_up;
      if ((in_one ? apart : together) || (mlp_in_one ? mlp_apart : mlp_together) ||
          elements_of(config, role, 0, config.layers) == 0)
        continue;
      EXPECT_FALSE(type.weight(role).empty()) << "role " << static_cast<int>(role);
    }
  }
}

TEST(HuggingFaceJson, OfFamiliesIsReadBackAsTheSameModelWithoutWarnings) {
  for (const json& object : {qwen2(), qwen3(), mistral(), smollm3(), granite(), gemma(), gemma2(), gemma3(), exaone4(),
                             stablelm(), phi3(), ministral3(), starcoder2(), glm4(), cohere(), gpt2()})
    expect_read_back(parse(object).config);
  ModelConfig exact = parse(gpt2()).config;
  exact.mlp = Mlp::gelu;
  expect_read_back(exact);
}

}  // namespace
}  // namespace tsprun::detail::families_config_test
