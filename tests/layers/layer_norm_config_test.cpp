// Configurations of families with LayerNorm: their published files, and what is refused by name.
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::layer_norm_config_test {
namespace {

using nlohmann::json;
using test::elements_of;
using test::expect_read_back;
using test::parse;

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
  expect_read_back(starcoder2());
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
  expect_read_back(cohere());
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
  object["head_dim"] = 64;
  EXPECT_EQ(parse(object).config.head_dim, 64U);
  object.erase("rope_theta");
  EXPECT_REFUSED(parse(object), "\"rope_theta\" is missing", "transformers 5");
  const std::vector<std::pair<std::string, json>> bad = {
      {"use_qk_norm", true}, {"logit_scale", 0}, {"partial_rotary_factor", 0.5}, {"mlp_bias", true}};
  for (const auto& [field, value] : bad) {
    object = cohere();
    object[field] = value;
    EXPECT_REFUSED(parse(object), '"' + field);
  }
  object = cohere();
  object["num_attention_heads"] = 60;
  EXPECT_REFUSED(parse(object), "\"head_dim\" is missing", "num_attention_heads 60 doesn't divide hidden_size 8192");
}

/// Command R7B's config.json as the hub has it.
json cohere2() {
  return json::parse(R"({
    "architectures": ["Cohere2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 5,
    "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,
    "max_position_embeddings": 8192, "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,
    "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta": 50000, "rotary_pct": 1.0,
    "sliding_window": 4096, "sliding_window_pattern": 4, "torch_dtype": "bfloat16", "transformers_version": "4.48.0.dev0",
    "use_cache": true, "use_embedding_sharing": true, "use_gated_activation": true, "use_parallel_block": true,
    "use_parallel_embedding": true, "vocab_size": 256000})");
}

TEST(Cohere2Config, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(cohere2());
  expect_read_back(cohere2());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 8'028'033'024U);  // as Hugging Face counts them
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.logits_factor(), 0.25);
  for (std::size_t layer = 0; layer < c.layers; ++layer) {
    EXPECT_EQ(c.layer(layer).window, layer % 4 == 3 ? 0U : 4096U) << layer;
    EXPECT_EQ(c.layer(layer).rotary_positions, layer % 4 != 3) << layer;
    EXPECT_TRUE(c.layer(layer).side_by_side());
  }
  json object = cohere2();
  for (const char* field : {"sliding_window", "sliding_window_pattern", "order_of_interleaved_layers"}) object.erase(field);
  EXPECT_TRUE(parse(object).config.same_model(c));
  object["sliding_window_pattern"] = 2;
  EXPECT_EQ(parse(object).config.layer(1).window, 0U);
  expect_read_back(parse(object).config);
  object["layer_types"] = json(32, "sliding_attention");
  EXPECT_TRUE(parse(object).config.layer(31).rotary_positions);
  object["layer_types"] = json(32, "full_attention");
  EXPECT_FALSE(parse(object).config.layer(0).rotary_positions);
  expect_read_back(object);
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, json>>{{"sliding_window", nullptr},
                                                 {"sliding_window_pattern", "LLLG"},
                                                 {"order_of_interleaved_layers", "global_attn_first"},
                                                 {"position_embedding_type", "alibi"},
                                                 {"use_parallel_block", false},
                                                 {"use_qk_norm", true},
                                                 {"rotary_pct", 0.5}}) {
    object = cohere2();
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
  expect_read_back(stablelm());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'795'443'200U);  // as Hugging Face counts them
  EXPECT_EQ(c.head_dim, 80U);
  EXPECT_EQ(c.rotary_dims({}), 20U);
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
  EXPECT_EQ(parse(object).config.rotary_dims({}), 40U);
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
                                                         {"head_dim", 128},
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
  expect_read_back(gpt2());
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

TEST(Gpt2Config, WritesTheExactFormOfItsActivation) {
  ModelConfig exact = parse(gpt2()).config;
  exact.mlp = Mlp::gelu;
  expect_read_back(exact);
}

/// Phi-2's config.json as the hub has it.
json phi() {
  return json::parse(R"({
    "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0,
    "eos_token_id": 50256, "hidden_act": "gelu_new", "hidden_size": 2560, "initializer_range": 0.02,
    "intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
    "qk_layernorm": false, "resid_pdrop": 0.1, "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "torch_dtype": "float16", "transformers_version": "4.37.0", "use_cache": true, "vocab_size": 51200})");
}

TEST(PhiConfig, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(phi());
  expect_read_back(phi());
  EXPECT_TRUE(loaded.warnings.empty());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(elements_of(c), 2'779'683'840U);  // as Hugging Face counts them
  EXPECT_TRUE(c.head_bias);
  EXPECT_EQ(c.layer(31).norms, NormPlaces::shared);
  EXPECT_EQ(c.rotary_dims({}), 32U);
  EXPECT_EQ(c.residual_dropout, 0.1);
  EXPECT_EQ(c.replicated_parameters(), 32U * (2 * 2560 + 3 * 2560 + 10240 + 2 * 2560) + 2 * 2560 + 51200);
  json object = phi();
  for (const char* field : {"partial_rotary_factor", "num_key_value_heads", "resid_pdrop"}) object.erase(field);
  EXPECT_EQ(parse(object).config.rotary_dims({}), 40U);
  EXPECT_EQ(parse(object).config.residual_dropout, 0);
  object["qk_layernorm"] = true;
  EXPECT_REFUSED(parse(object), "\"qk_layernorm\"");
}

TEST(PhiConfig, HonoursASizeOfHeads) {
  json object = phi();
  object["head_dim"] = 160;
  const LoadedConfig loaded = parse(object);
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(loaded.config.head_dim, 160U);
  EXPECT_EQ(elements_of(loaded.config), elements_of(parse(phi()).config) + 32U * 32 * 80 * (4 * 2560 + 3));
  expect_read_back(object);
  object["head_dim"] = nullptr;
  EXPECT_EQ(parse(object).config.head_dim, 80U);
}

}  // namespace
}  // namespace tsprun::detail::layer_norm_config_test
