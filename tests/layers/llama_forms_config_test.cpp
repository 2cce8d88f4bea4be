// Configurations of families that are Llama's form but for a few lines: their published files, and what is refused by name.
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::llama_forms_config_test {
namespace {

using nlohmann::json;
using test::elements_of;
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

TEST(Qwen2Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(qwen2());
  expect_read_back(qwen2());
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
  expect_read_back(qwen3());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(loaded.config.layer(0).query_key_norm, QueryKeyNorm::heads);
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
  expect_read_back(mistral());
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
  expect_read_back(smollm3());
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
  expect_read_back(granite());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'533'531'648U);  // as Hugging Face counts them
  EXPECT_EQ((std::vector<double>{c.embedding_factor(), c.residual_multiplier, c.attention_factor({}), c.logits_factor()}),
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
  EXPECT_EQ((std::vector<double>{without.embedding_factor(), without.residual_multiplier, without.attention_factor({}),
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

TEST(Exaone4Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(exaone4());
  expect_read_back(exaone4());
  EXPECT_TRUE(loaded.warnings.empty());
  // Without layer_types transformers divides by a pattern of 0.
  EXPECT_EQ(json::parse(hugging_face_json(loaded.config, "float32")).at("layer_types"), json(30, "full_attention"));
  EXPECT_EQ(elements_of(loaded.config), 1'279'391'488U);  // as Hugging Face counts them
  EXPECT_EQ(loaded.config.layer(0).norms, NormPlaces::after);
  EXPECT_EQ(loaded.config.layer(29).query_key_norm, QueryKeyNorm::heads);
  EXPECT_EQ(loaded.config.replicated_parameters(), 61U * 2048 + 30 * 128);
  json object = exaone4();
  object["sliding_window_pattern"] = "LLLG";  // means nothing without a window
  EXPECT_TRUE(parse(object).config.same_model(loaded.config));
  EXPECT_TRUE(parse(object).warnings.empty());
  object["layer_types"][2] = "sliding_attention";
  EXPECT_REFUSED(parse(object), "\"layer_types[2]\": expected \"full_attention\", for the file has no window in use");
}

/// Layers without a window don't rotate where others have one: EXAONE 4.0 32B's fields.
TEST(Exaone4Config, HasWindowsInLayersThatRotateAlone) {
  json object = exaone4();
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{{"hidden_size", 5120},
                                                                              {"intermediate_size", 27392},
                                                                              {"num_attention_heads", 40},
                                                                              {"num_hidden_layers", 64},
                                                                              {"head_dim", 128},
                                                                              {"tie_word_embeddings", false},
                                                                              {"sliding_window", 4096},
                                                                              {"sliding_window_pattern", "LLLG"}})
    object[field] = value;
  object["layer_types"] = json::array();
  for (int layer = 0; layer < 64; ++layer)
    object["layer_types"].push_back(layer % 4 == 3 ? "full_attention" : "sliding_attention");
  const LoadedConfig loaded = parse(object);
  EXPECT_TRUE(loaded.warnings.empty());
  expect_read_back(object);
  EXPECT_EQ(elements_of(loaded.config), 32'003'216'384U);  // 30.95 B without embedding and head, as the model's card says
  for (std::size_t layer = 0; layer < 64; ++layer) {
    EXPECT_EQ(loaded.config.layer(layer).window, layer % 4 == 3 ? 0U : 4096U) << layer;
    EXPECT_EQ(loaded.config.layer(layer).rotary_positions, layer % 4 != 3) << layer;
  }
  object.erase("layer_types");
  EXPECT_TRUE(parse(object).config.same_model(loaded.config));
  for (const char* field : {"sliding_window", "sliding_window_pattern"}) object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(loaded.config));
  object["sliding_window_pattern"] = "LGL";  // of which the last layer is none, as are those of a G
  const ModelConfig letters = parse(object).config;
  EXPECT_EQ((std::vector<std::size_t>{letters.layer(0).window, letters.layer(1).window, letters.layer(63).window}),
            (std::vector<std::size_t>{4096, 0, 0}));
  expect_read_back(letters);
  object["layer_types"] = json(64, "full_attention");  // none has the window, and so none rotates
  object.erase("sliding_window_pattern");
  const ModelConfig full = parse(object).config;
  EXPECT_EQ(full.layer(0).window, 0U);
  EXPECT_FALSE(full.layer(0).rotary_positions);
  expect_read_back(object);
  object.erase("layer_types");
  for (const json& bad : {json("LLXG"), json(""), json(0)}) {
    object["sliding_window_pattern"] = bad;
    EXPECT_REFUSED(parse(object), "\"sliding_window_pattern\"");
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
  expect_read_back(glm4());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 9'400'094'720U);  // as Hugging Face counts them
  EXPECT_EQ(c.rotary_dims({}), 64U);
  EXPECT_TRUE(c.interleaved_rotary);
  EXPECT_EQ(c.layer(39).norms, NormPlaces::around);
  EXPECT_EQ(c.layer(39).biases, Biases{});
  json object = glm4();
  for (const char* field : {"attention_bias", "head_dim", "partial_rotary_factor"}) object.erase(field);
  const ModelConfig usual = parse(object).config;
  EXPECT_EQ(usual.layer(0).biases, (Biases{.query = true, .key = true, .value = true}));
  EXPECT_EQ(usual.head_dim, 128U);
  EXPECT_EQ(usual.rotary_dims({}), 64U);
  expect_read_back(usual);
  object["mlp_bias"] = true;
  EXPECT_REFUSED(parse(object), "\"mlp_bias\"");
}

}  // namespace
}  // namespace tsprun::detail::llama_forms_config_test
