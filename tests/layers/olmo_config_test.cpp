// Configurations of OLMo's families: their published files, and what is refused by name.
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::olmo_config_test {
namespace {

using nlohmann::json;
using test::elements_of;
using test::expect_read_back;
using test::parse;

/// OLMo 2 7B's config.json as the hub has it.
json olmo2() {
  return json::parse(R"({
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
    "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "use_cache": true,
    "vocab_size": 100352})");
}

TEST(Olmo2Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(olmo2());
  expect_read_back(olmo2());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(elements_of(loaded.config), 7'298'617'344U);  // as Hugging Face counts them
  EXPECT_EQ(loaded.config.layer(31).query_key_norm, QueryKeyNorm::rows);
  EXPECT_EQ(loaded.config.layer(31).norms, NormPlaces::after);
  EXPECT_EQ(loaded.config.replicated_parameters(), 65U * 4096 + 32 * 2 * 4096);
  json object = olmo2();
  object["num_key_value_heads"] = 8;
  EXPECT_EQ(parse(object).config.replicated_parameters(), 65U * 4096 + 32 * (4096 + 1024));
  object["attention_bias"] = true;
  object["attention_dropout"] = 0.1;
  EXPECT_EQ(parse(object).config.layer(0).biases, (Biases{.query = true, .key = true, .value = true, .output = true}));
  EXPECT_EQ(parse(object).config.attention_dropout, 0.1);
  EXPECT_EQ(parse(object).config.layer(0).query_key_norm, QueryKeyNorm::rows);
  expect_read_back(object);
}

TEST(Olmo2Config, RefusesWhatChangesTheComputationByName) {
  const std::vector<std::pair<std::string, json>> bad = {
      {"clip_qkv", 8.0}, {"sliding_window", 4096}, {"mlp_bias", true}, {"hidden_act", "gelu"}, {"partial_rotary_factor", 0.5}};
  for (const auto& [field, value] : bad) {
    json object = olmo2();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
}

/// OLMo 3 7B's config.json as the hub has it, but for layer_types, which has 32 entries there.
json olmo3() {
  json object = json::parse(R"({
    "architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "dtype": "bfloat16",
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
    "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                     "original_max_position_embeddings": 8192, "rope_type": "yarn"},
    "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false, "transformers_version": "4.57.1",
    "use_cache": true, "vocab_size": 100278})");
  for (int layer = 0; layer < 32; ++layer)
    object["layer_types"].push_back(layer % 4 == 3 ? "full_attention" : "sliding_attention");
  return object;
}

TEST(Olmo3Config, HasWindowsThatAreNotScaled) {
  const LoadedConfig loaded = parse(olmo3());
  expect_read_back(olmo3());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(elements_of(loaded.config), 7'298'011'136U);  // as Hugging Face counts them
  for (std::size_t layer = 0; layer < 32; ++layer) {
    EXPECT_EQ(loaded.config.layer(layer).window, layer % 4 == 3 ? 0U : 4096U) << layer;
    EXPECT_EQ(loaded.config.layer(layer).local_rotary, layer % 4 != 3) << layer;
    EXPECT_EQ(loaded.config.layer(layer).query_key_norm, QueryKeyNorm::rows) << layer;
  }
  EXPECT_EQ((std::vector<double>{loaded.config.rope_theta, loaded.config.local_rope_theta, loaded.config.rope_scaling.factor}),
            (std::vector<double>{500'000, 500'000, 8}));
  json object = olmo3();
  for (const char* field : {"layer_types", "sliding_window"}) object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(loaded.config));
  object["sliding_window"] = nullptr;
  EXPECT_REFUSED(parse(object), "\"sliding_window\": expected a number of tokens");
  object = olmo3();
  object.erase("rope_theta");
  EXPECT_REFUSED(parse(object), "\"rope_theta\"", "500,000 to transformers 5");
  object.erase("rope_scaling");
  for (const json& unsaid : {json(), json{{"rope_type", "default"}}}) {
    object["rope_parameters"] = unsaid;
    EXPECT_REFUSED(parse(object), "\"rope_theta\"", "500,000 to transformers 5");
  }
}

/// As transformers 5 writes it: for all layers, or by kinds of them.
TEST(Olmo3Config, HasRotaryPositionsAsTransformers5WritesThem) {
  json object = olmo3();
  const json scaling = object["rope_scaling"];
  for (const char* field : {"rope_theta", "rope_scaling"}) object.erase(field);
  object["rope_parameters"] = scaling;
  object["rope_parameters"]["rope_theta"] = 500'000.0;
  EXPECT_TRUE(parse(object).config.same_model(parse(olmo3()).config));
  expect_read_back(object);
  object["rope_parameters"] = {{"full_attention", object["rope_parameters"]},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 20'000.0}}}};
  EXPECT_REFUSED(parse(object), "rope_parameters.sliding_attention.rope_theta", "500000 as full_attention says");
  object["rope_parameters"]["sliding_attention"]["rope_theta"] = 500'000.0;
  EXPECT_TRUE(parse(object).config.same_model(parse(olmo3()).config));
  expect_read_back(object);
}

}  // namespace
}  // namespace tsprun::detail::olmo_config_test
