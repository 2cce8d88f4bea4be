// Model configurations: the sizes of the built-in ones, Hugging Face's files, and what is refused by name.
#include "layers/parameters/parameters.h"
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

namespace tsprun::detail::config_test {
namespace {

using nlohmann::json;
using test::expect_read_back;
using test::parse;

/// A config.json as Hugging Face writes it.
json good() {
  return json::parse(R"({
    "_name_or_path": "some/model", "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
    "intermediate_size": 172, "max_position_embeddings": 128, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 8, "num_hidden_layers": 3, "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.41.0", "use_cache": true, "vocab_size": 257})");
}

json with(std::string_view field, const json& value) {
  json object = good();
  object[std::string(field)] = value;
  return object;
}

json without(std::string_view field) {
  json object = good();
  object.erase(std::string(field));
  return object;
}

TEST(BuiltInConfigs, HaveTheirPublishedSizes) {
  // h, L, n_h, n_kv, d, intermediate, V, S
  const std::map<std::string, std::vector<std::size_t>> expected = {
      {"nano", {64, 2, 8, 4, 8, 176, 256, 256}},
      {"micro", {256, 4, 8, 4, 32, 704, 256, 1024}},
      {"small", {1024, 12, 16, 8, 64, 2816, 256, 2048}},
  };
  for (const auto& [name, sizes] : expected) {
    const ModelConfig c = find_config(name).config;
    EXPECT_EQ((std::vector<std::size_t>{c.hidden, c.layers, c.query_heads, c.kv_heads, c.head_dim, c.intermediate, c.vocabulary,
                                        c.max_positions}),
              sizes)
        << name;
  }
  const ModelConfig paper = find_config("paper-7b").config;
  EXPECT_EQ(paper.hidden, 4096U);
  EXPECT_EQ(paper.layers, 32U);
  EXPECT_EQ(paper.query_heads, 32U);
  EXPECT_EQ(paper.kv_heads, 32U);
  EXPECT_EQ(paper.head_dim, 128U);
  EXPECT_EQ(paper.intermediate, 4U * 4096);
  EXPECT_EQ(paper.vocabulary, 32000U);
  for (const ModelConfig& config : built_in_configs()) EXPECT_NO_THROW(check_config(config, config.name));
}

TEST(Config, ChecksTheSizesOfEachLayer) {
  ModelConfig config = find_config("nano").config;
  const auto message = [&](const LayerSpec& last) -> std::string {
    std::vector<LayerSpec> layers(config.layers, config.layer(0));
    layers.back() = last;
    ModelConfig unlike = config;
    unlike.specs = LayerSpecs(layers);
    try {
      check_config(unlike, "x.json");
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(message({.head_dim = 6, .kv_heads = 1, .intermediate = 3}), "");
  EXPECT_NE(message({.head_dim = 7}).find("\"head_dim\": expected an even number"), std::string::npos)
      << message({.head_dim = 7});
  EXPECT_NE(message({.kv_heads = 3}).find("\"num_key_value_heads\": expected a divisor"), std::string::npos);
  EXPECT_NE(message({.intermediate = std::size_t{1} << 45}).find("2^48"), std::string::npos);
}

TEST(Config, ChecksWhoLendsKeysAndValues) {
  const auto message = [](std::vector<LayerSpec> layers) -> std::string {
    ModelConfig config = find_config("nano").config;
    config.layers = layers.size();
    config.specs = LayerSpecs(std::move(layers));
    try {
      check_config(config, "x.json");
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(message({{.kv_heads = 1}, {}, {.kv_heads = 1, .layers_to_lender = 2}}), "");
  const std::string why = "x.json: layer 2 can't take keys and values of the layer ";
  EXPECT_TRUE(message({{.kv_heads = 1}, {}, {.kv_heads = 1, .layers_to_lender = 1}}).starts_with(why + "1 before it"));
  EXPECT_TRUE(message({{}, {.layers_to_lender = 1}, {.layers_to_lender = 1}}).starts_with(why + "1 before it"));
  EXPECT_TRUE(message({{}, {}, {.layers_to_lender = 3}}).starts_with(why + "3 before it"));
  EXPECT_TRUE(message({{.head_dim = 6}, {}, {.layers_to_lender = 2}}).starts_with(why + "2 before it"));
}

TEST(Config, HasSizesOfItsLayers) {
  ModelConfig config = find_config("nano").config;
  const LayerSpec own{.head_dim = 6, .kv_heads = 1, .intermediate = 3};
  EXPECT_TRUE(config.has_sizes_of({}));
  config.specs = LayerSpecs(std::vector<LayerSpec>{{}, own});
  EXPECT_FALSE(config.has_sizes_of({}));
  EXPECT_EQ(config.query_width(own), 6 * config.query_heads);
  EXPECT_EQ(config.kv_width(own), 6U);
  EXPECT_EQ(config.heads_per_kv_head(own), config.query_heads);
  EXPECT_EQ(config.rotary_dims(own), 6U);
  EXPECT_DOUBLE_EQ(config.attention_factor(own), 1 / std::sqrt(6.0));
  const ModelConfig alike = config.of_layers_like(own);
  EXPECT_EQ(alike.sizes_of(alike.layer(0)), config.sizes_of(own));
  EXPECT_TRUE(alike.specs.alike());
  EXPECT_EQ(alike.head_dim, 6U);
  EXPECT_EQ(alike.intermediate, 3U);
}

TEST(ConfigFile, IsReadAsHuggingFaceWritesIt) {
  const LoadedConfig loaded = parse(good());
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(c.hidden, 64U);
  EXPECT_EQ(c.layers, 3U);
  EXPECT_EQ(c.query_heads, 8U);
  EXPECT_EQ(c.kv_heads, 2U);
  EXPECT_EQ(c.heads_per_kv_head({}), 4U);
  EXPECT_EQ(c.head_dim, 8U);
  EXPECT_EQ(c.intermediate, 172U);
  EXPECT_EQ(c.vocabulary, 257U);
  EXPECT_EQ(c.max_positions, 128U);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.rope_theta, 500000.0);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_TRUE(loaded.warnings.empty()) << loaded.warnings.front();
}

TEST(ConfigFile, HeadDimMayDifferFromHiddenOverHeads) {
  const ModelConfig c = parse(with("head_dim", 32)).config;
  EXPECT_EQ(c.head_dim, 32U);
  EXPECT_EQ(c.query_width({}), 256U);
  EXPECT_EQ(c.kv_width({}), 64U);
  json odd_hidden = with("hidden_size", 60);
  EXPECT_REFUSED(parse(odd_hidden), "config.json", "\"head_dim\"", "num_attention_heads 8", "hidden_size 60");
  odd_hidden["head_dim"] = 8;
  EXPECT_NO_THROW(parse(odd_hidden));
}

TEST(ConfigFile, LeavesOutWhatHuggingFaceHasDefaultsFor) {
  json object = good();
  for (const char* field :
       {"num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "max_position_embeddings"}) {
    object.erase(field);
  }
  object["head_dim"] = nullptr;
  const ModelConfig c = parse(object).config;
  EXPECT_EQ(c.kv_heads, 8U);
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.max_positions, 2048U);
}

TEST(ConfigFile, RefusesSizesThatAreNone) {
  const std::vector<json> bad = {0, -64, 2.5, 64.0, "64", true, json::array(), json::object(), 1e30, 4294967296};
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                            "intermediate_size", "vocab_size", "max_position_embeddings"}) {
    for (const json& value : bad) {
      EXPECT_REFUSED(parse(with(field, value)), "config.json", std::string("\"") + field + "\"", "an integer from 1 to");
    }
  }
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    EXPECT_REFUSED(parse(without(field)), "config.json", std::string("\"") + field + "\" is missing", "an integer");
    EXPECT_REFUSED(parse(with(field, nullptr)), std::string("\"") + field + "\"", "an integer", "null");
  }
}

TEST(ConfigFile, RefusesNumbersThatArentPositiveAndFinite) {
  for (const char* field : {"rms_norm_eps", "rope_theta"}) {
    for (const json& value : {json(0), json(0.0), json(-1e-5), json("1e-5"), json(true)}) {
      EXPECT_REFUSED(parse(with(field, value)), "config.json", std::string("\"") + field + "\"", "a positive finite number");
    }
    for (const char* word : {"NaN", "Infinity", "-Infinity", "nan", "1e999", "-1e999"}) {
      std::string text = with(field, "HERE").dump();
      text.replace(text.find("\"HERE\""), 6, word);
      EXPECT_REFUSED(parse_config(text, "config.json"), "config.json", std::string("\"") + field + "\"", "a finite number");
    }
  }
  std::string text = with("hidden_size", "HERE").dump();
  text.replace(text.find("\"HERE\""), 6, "NaN");
  EXPECT_REFUSED(parse_config(text, "config.json"), "\"hidden_size\"", "found NaN");
}

TEST(ConfigFile, RefusesByNameWhatChangesTheComputation) {
  EXPECT_REFUSED(parse(with("no_rope_layers", {1, 0})), "\"no_rope_layers\"");  // Llama's layers are alike
  const std::vector<std::pair<const char*, json>> bad = {
      {"model_type", "mamba"},
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"sliding_window", 4096},
      {"rope_scaling", {{"type", "linear"}}},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 1.0}}},
      {"rope_scaling", {{"type", "default"}, {"factor", 2.0}}},
      {"rope_scaling", {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 1.0}}},
      {"use_sliding_window", true},
      {"attention_dropout", 0.1},
      {"partial_rotary_factor", 0.5},
      {"quantization_config", {{"bits", 4}}},
      {"architectures", {"MistralForCausalLM"}},
      {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
      {"num_local_experts", 8},
      {"clip_qkv", 8.0},
      {"pruned_heads", {{"0", {1, 2}}}},
      {"rotary_pct", 0.25},
      {"no_rope_layers", {1, 0}},
      {"attention_chunk_size", 8192},
      {"final_logit_softcapping", 30.0},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"beta_fast", 32}}},
      {"rope_scaling", "dynamic"},
      {"rope_scaling", {{"factor", 8.0}}},
      {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 500000.0}}},
      {"rope_parameters", {{"rope_theta", 1.0}}},
      {"rope_parameters", {{"rope_theta", 500000.0}, {"partial_rotary_factor", 0.5}}},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 2.0}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"llama_4_scaling_beta", 0.1}}},
      {"tie_word_embeddings", 1},
      {"num_key_value_heads", 3},
  };
  for (const auto& bad_field : bad) {
    const auto& field = bad_field.first;
    const auto& value = bad_field.second;
    EXPECT_REFUSED(parse(with(field, value)), "config.json", std::string("field \"") + field);
  }
  EXPECT_REFUSED(parse(with("head_dim", 7)), "\"head_dim\"", "even");
  EXPECT_REFUSED(parse(with("architectures", json::array())), "\"architectures\"",
                 "expected a list with \"LlamaForCausalLM\" in it, or no such field, found an array");
  // Of a scaling the kind is named, not the first of its numbers.
  EXPECT_REFUSED(
      parse(with("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}})), "\"rope_scaling.type\"",
      "expected \"default\", \"linear\", \"llama3\" or \"yarn\" (no other rope scaling is supported), found \"dynamic\"");
}

TEST(ConfigFile, NamesTheFamiliesThatThereAreAndTheNearest) {
  EXPECT_REFUSED(parse(with("model_type", "qwen_3")),
                 "\"model_type\": expected one of cohere, cohere2, exaone4, gemma, gemma2, gemma3, "
                 "gemma3_text, gemma4, gemma4_text, glm4, gpt2, granite, llama, ministral3, mistral, mistral3, olmo2, olmo3, "
                 "phi, phi3, qwen2, qwen3, smollm3, "
                 "stablelm, starcoder2 (no other family is supported; the nearest is qwen3), found \"qwen_3\"");
  EXPECT_REFUSED(parse(with("model_type", "qwen3_next")), "the nearest is qwen3)");
  EXPECT_REFUSED(parse(with("model_type", "gemma3n_text")), "the nearest is gemma3_text)");
  EXPECT_REFUSED(parse(with("model_type", "deepseek_v3")), "starcoder2 (no other family is supported), found");
  EXPECT_REFUSED(parse(with("model_type", 3)), "starcoder2 (no other family is supported), found 3");
}

TEST(ConfigFile, AcceptsWhatIsNeutralBesideAnotherField) {
  json window = with("sliding_window", 4096);
  for (const json& used : {json(nullptr), json(true), json("no")}) {
    window["use_sliding_window"] = used;
    EXPECT_REFUSED(parse(window), "config.json", "sliding_window");
  }
  window["use_sliding_window"] = false;
  window["max_window_layers"] = 28;
  EXPECT_TRUE(parse(window).warnings.empty());
  EXPECT_TRUE(parse(window).config.same_model(parse(good()).config));
}

TEST(ConfigFile, AcceptsNeutralValues) {
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, json>>{{"sliding_window", nullptr},
                                                 {"rope_scaling", {{"rope_type", "default"}}},
                                                 {"rope_scaling", {{"type", "linear"}, {"factor", 1.0}}},
                                                 {"rope_scaling", {{"rope_type", "linear"}, {"type", "linear"}, {"factor", 1}}},
                                                 {"rope_scaling", {{"rope_type", "default"}, {"factor", 1.0}}},
                                                 {"rope_scaling", {{"factor", 1.0}}},
                                                 {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}}},
                                                 {"layer_types", {"full_attention", "full_attention", "full_attention"}},
                                                 {"hidden_act", "swish"},
                                                 {"pruned_heads", json::object()},
                                                 {"attention_dropout", 0}}) {
    EXPECT_NO_THROW(EXPECT_TRUE(parse(with(field, value)).warnings.empty())) << field;
  }
  json newer = without("rope_theta");
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1234.0}};
  EXPECT_EQ(parse(newer).config.rope_theta, 1234.0);
  newer["rope_scaling"] = {{"rope_type", "default"}, {"rope_theta", 1234.0}};
  EXPECT_EQ(parse(newer).config.rope_theta, 1234.0);
  newer["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(parse(newer).config.rope_theta, 1234.0);
  newer["rope_scaling"] = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  EXPECT_REFUSED(parse(newer), "rope_parameters.rope_theta", "expected 500 as rope_scaling says", "1234");
}

/// Llama 3.1's.
json llama3_scaling() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

TEST(RopeScaling, IsReadInBothFormsAndWrittenBack) {
  const ModelConfig older = parse(with("rope_scaling", llama3_scaling())).config;
  EXPECT_EQ(older.rope_scaling, (RopeScaling{.kind = RopeScaling::Kind::llama3,
                                             .factor = 8,
                                             .low_frequency_factor = 1,
                                             .high_frequency_factor = 4,
                                             .original_positions = 8192}));
  json object = without("rope_theta");
  object["rope_parameters"] = llama3_scaling();
  object["rope_parameters"]["rope_theta"] = 500000.0;
  const LoadedConfig newer = parse(object);
  EXPECT_TRUE(newer.warnings.empty());
  EXPECT_TRUE(newer.config.same_model(older));
  const json linear = {{"type", "linear"}, {"factor", 2.5}};
  for (const ModelConfig& config : {older, parse(with("rope_scaling", linear)).config}) {
    EXPECT_FALSE(config.same_model(parse(good()).config));
    EXPECT_TRUE(parse_config(hugging_face_json(config, "float32"), "again").config.same_model(config));
  }
  // A file that says it keeps its form.
  const json written = json::parse(hugging_face_json(older, "float32", object.dump()));
  EXPECT_EQ(written.at("rope_parameters"), object.at("rope_parameters"));
  EXPECT_TRUE(written.at("rope_scaling").is_null());
  EXPECT_FALSE(written.contains("rope_theta"));
}

TEST(RopeScaling, RefusesWhatIsMissingOrContradictsItself) {
  const json whole = llama3_scaling();
  for (const auto& [field, value] : whole.items()) {
    json scaling = llama3_scaling();
    scaling.erase(field);
    EXPECT_REFUSED(parse(with("rope_scaling", scaling)), "rope_scaling." + (field == "rope_type" ? "factor" : field));
    scaling[field] = -1;
    EXPECT_REFUSED(parse(with("rope_scaling", scaling)), "rope_scaling." + field);
  }
  json scaling = llama3_scaling();
  scaling["high_freq_factor"] = 1.0;
  EXPECT_REFUSED(parse(with("rope_scaling", scaling)), "rope_scaling.high_freq_factor", "a number above low_freq_factor 1");
  scaling = llama3_scaling();
  scaling["type"] = "linear";
  EXPECT_REFUSED(parse(with("rope_scaling", scaling)), "rope_scaling.type", "\"llama3\" as rope_type says");
  json twice = with("rope_scaling", llama3_scaling());
  twice["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_REFUSED(parse(twice), "\"rope_parameters\"", "the same as rope_scaling");
  twice["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_REFUSED(parse(twice), "\"rope_parameters\"", "the same as rope_scaling");
  json outside = with("rope_scaling", llama3_scaling());
  outside["original_max_position_embeddings"] = 4096;
  EXPECT_REFUSED(parse(outside), "original_max_position_embeddings", "8192 as rope_scaling says");
  EXPECT_REFUSED(parse(with("rope_scaling", {{"rope_type", "linear"}, {"factor", 5e-324}})), "rope_theta", "finite frequencies");
  EXPECT_REFUSED(parse(with("is_causal", false)), "is_causal");
  EXPECT_NO_THROW(parse(with("is_causal", true)));
}

// By hand, for theta 16 and 4 pairs: waves of 2π, 4π, 8π and 16π tokens, of an original context of 32π.
TEST(RopeScaling, ChangesFrequenciesByTheLengthOfTheirWaves) {
  const auto close = [](const std::vector<double>& found, const std::vector<double>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-3 * expected[i]) << i;
  };
  close(rope_frequencies(16, {}, 8), {1, 0.5, 0.25, 0.125});
  close(rope_frequencies(16, {.kind = RopeScaling::Kind::linear, .factor = 4}, 8), {0.25, 0.125, 0.0625, 0.03125});
  // In 101 ≈ 32π tokens there are 16, 8, 4 and 2 waves: kept from 8 on, a quarter from 2 down; 4 is a third of the way.
  close(rope_frequencies(16,
                         {.kind = RopeScaling::Kind::llama3,
                          .factor = 4,
                          .low_frequency_factor = 2.02,
                          .high_frequency_factor = 8,
                          .original_positions = 101},
                         8),
        {1, 0.5, (2.0 / 3 / 4 + 1.0 / 3) * 0.25, 0.03125});
}

/// Qwen's, for texts of four times the length.
json yarn_scaling() { return {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 101}}; }

TEST(RopeScaling, YarnIsReadWithItsDefaultsAndWrittenBack) {
  const ModelConfig config = parse(with("rope_scaling", yarn_scaling())).config;
  EXPECT_EQ(config.rope_scaling, (RopeScaling{.kind = RopeScaling::Kind::yarn,
                                              .factor = 4,
                                              .original_positions = 101,
                                              .beta_fast = 32,
                                              .beta_slow = 1,
                                              .attention_factor = 0.1 * std::log(4.0) + 1}));
  expect_read_back(config);
  json newer = without("rope_theta");
  newer["rope_parameters"] = yarn_scaling();
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  newer["rope_parameters"]["truncate"] = true;
  EXPECT_TRUE(parse(newer).config.same_model(config));
  json scaling = yarn_scaling();
  scaling.erase("original_max_position_embeddings");
  EXPECT_EQ(parse(with("rope_scaling", scaling)).config.rope_scaling.original_positions, 128U);  // the model's positions
  json beside = with("rope_scaling", scaling);
  beside["original_max_position_embeddings"] = 64;
  EXPECT_EQ(parse(beside).config.rope_scaling.original_positions, 64U);
}

TEST(RopeScaling, YarnsFactorOnCosinesFollowsFromWhatTheFileSays) {
  const auto factor_of = [](const std::vector<std::pair<const char*, json>>& fields) {
    json scaling = yarn_scaling();
    for (const auto& [field, value] : fields) scaling[field] = value;
    const ModelConfig config = parse(with("rope_scaling", scaling)).config;
    expect_read_back(config);
    return config.rope_scaling.attention_factor;
  };
  const double ln4 = std::log(4.0);
  EXPECT_EQ(factor_of({{"attention_factor", 1.5}}), 1.5);
  EXPECT_EQ(factor_of({{"attention_factor", 1.5}, {"mscale", 2.0}, {"mscale_all_dim", 1.0}}), 1.5);
  EXPECT_NEAR(factor_of({{"mscale", 2.0}, {"mscale_all_dim", 0.5}}), (0.2 * ln4 + 1) / (0.05 * ln4 + 1), 1e-15);
  EXPECT_EQ(factor_of({{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 1);
  EXPECT_NEAR(factor_of({{"mscale", 2.0}}), 0.1 * ln4 + 1, 1e-15);  // alone it means nothing
  EXPECT_NEAR(factor_of({{"mscale", 2.0}, {"mscale_all_dim", 0}}), 0.1 * ln4 + 1, 1e-15);
  EXPECT_EQ(factor_of({{"factor", 0.5}}), 1);
}

// By hand, for theta 16 and 4 pairs: pair p turns 101/2π·2^(−p) times, that is 16, 8, 4 and 2 times. 7 turns lie between pairs 1
// and 2, 2.2 turns between 2 and 3, so the ramp goes from pair 1 to pair 3.
TEST(RopeScaling, YarnDividesPairsThatTurnLittle) {
  RopeScaling scaling{.kind = RopeScaling::Kind::yarn,
                      .factor = 4,
                      .original_positions = 101,
                      .beta_fast = 7,
                      .beta_slow = 2.2,
                      .attention_factor = 2};
  const std::vector<double> whole = rope_frequencies(16, scaling, 8);
  const std::vector<double> expected = {1, 0.5, 0.25 * (0.5 + 0.5 / 4), 0.125 / 4};
  scaling.truncate = false;
  const std::vector<double> between = rope_frequencies(16, scaling, 8);
  const double turns = 101 / (2 * std::acos(-1.0));
  const double first = std::log2(turns / 7);
  const double last = std::log2(turns / 2.2);
  const double kept = (last - 2) / (last - first);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(whole[i], expected[i], 1e-15) << i;
    EXPECT_NEAR(between[i], i == 2 ? 0.25 * (kept + (1 - kept) / 4) : expected[i], 1e-14) << i;
  }
}

TEST(RopeScaling, YarnRefusesWhatItDoesntKnow) {
  const std::vector<std::pair<std::string, json>> bad = {
      {"beta_fast", -1},     {"beta_slow", 0},      {"mscale", "1"},         {"mscale_all_dim", -1},
      {"truncate", 1},       {"factor", 0},         {"attention_factor", 0}, {"original_max_position_embeddings", 0},
      {"short_factor", {1}}, {"low_freq_factor", 1}};
  for (const auto& [field, value] : bad) {
    json scaling = yarn_scaling();
    scaling[field] = value;
    EXPECT_REFUSED(parse(with("rope_scaling", scaling)), "rope_scaling.");
  }
  json scaling = yarn_scaling();
  scaling.erase("factor");
  EXPECT_REFUSED(parse(with("rope_scaling", scaling)), "\"rope_scaling.factor\" is missing");
}

TEST(ConfigFile, WarnsOnceOfEachUnknownField) {
  json object = good();
  object["my_new_field"] = 1;
  object["another"] = {{"hidden_size", 3}};
  const LoadedConfig loaded = parse(object);
  ASSERT_EQ(loaded.warnings.size(), 2U);
  EXPECT_NE(loaded.warnings[0].find("another"), std::string::npos);
  EXPECT_NE(loaded.warnings[1].find("my_new_field"), std::string::npos);
}

TEST(ConfigFile, RefusesWhatIsntOneJsonObject) {
  EXPECT_REFUSED(parse_config("", "c.json"), "c.json", "expected JSON");
  EXPECT_REFUSED(parse_config(good().dump() + std::string("\0", 1), "c.json"), "c.json: expected JSON", "is a NUL");
  EXPECT_REFUSED(parse_config(good().dump() + std::string("\0, \"sliding_window\": 7}", 23), "c.json"), "is a NUL");
  EXPECT_REFUSED(parse_config("[1]", "c.json"), "c.json", "object");
  EXPECT_REFUSED(parse_config(good().dump() + "x", "c.json"), "c.json");
  EXPECT_REFUSED(parse_config(good().dump().substr(0, 100), "c.json"), "c.json", "expected JSON");
  EXPECT_REFUSED(parse_config(R"({"hidden_size": 64, "hidden_size": 128})", "c.json"), "\"hidden_size\" is given twice");
  EXPECT_REFUSED(parse_config(R"({"a": {"b": 1, "b": 2}})", "c.json"), "\"a.b\" is given twice");
  EXPECT_REFUSED(parse_config(std::string(100000, '['), "c.json"), "nested deeper");
  EXPECT_REFUSED(parse_config("{\"a\": \"\xff\xfe\"}", "c.json"), "c.json");
}

TEST(ConfigFile, TheSameNameInTwoObjectsIsNoDuplicate) {
  json object = good();
  object["id2label"] = {{"x", 1}};
  object["label2id"] = {{"x", 1}};
  EXPECT_NO_THROW(parse(object));
}

TEST(ConfigFile, RefusesSizesWhoseProductsOverflow) {
  json object = good();
  object["hidden_size"] = 2147483647;
  object["head_dim"] = 2147483646;
  object["num_attention_heads"] = 2147483647;
  object["num_key_value_heads"] = 1;
  EXPECT_REFUSED(parse(object), "\"hidden_size\"", "2^48");
  EXPECT_REFUSED(parse(with("num_hidden_layers", 2000000000)), "\"num_hidden_layers\"", "10000");
}

TEST(FindConfig, NamesTheBuiltInsIfThereIsNothingOfThatName) {
  EXPECT_REFUSED(find_config("nanno"), "--config nanno", "nano, micro, small, paper-7b");
  const test::TemporaryFolder folder;
  EXPECT_REFUSED(find_config(folder.path().string()), "expected a regular file");
  EXPECT_REFUSED(read_config(folder / "none.json"), "none.json", "No such file or directory");
  const auto file = folder.write("config.json", good().dump());
  EXPECT_EQ(find_config(file.string()).config.hidden, 64U);
  EXPECT_EQ(find_config(file.string()).config.name, file.string());
}

TEST(HuggingFaceJson, IsReadBackAsTheSameModelWithoutWarnings) {
  std::vector<ModelConfig> configs = built_in_configs();
  configs.push_back(parse(with("head_dim", 32)).config);
  configs.back().norm_epsilon = 0.1 + 0.2;
  for (const ModelConfig& config : configs) expect_read_back(config);
}

TEST(ModelParameters, BearHuggingFacesNamesAndShapes) {
  ModelConfig config = parse(with("head_dim", 32)).config;
  config.tied_embeddings = false;
  std::map<std::string, std::vector<std::size_t>> shapes;
  for (const Parameter& parameter : model_parameters(config)) shapes[parameter.name] = parameter.shape;
  using Shape = std::vector<std::size_t>;
  EXPECT_EQ(shapes.size(), 3U + 9 * 3);
  EXPECT_EQ(shapes.at("model.embed_tokens.weight"), (Shape{257, 64}));
  EXPECT_EQ(shapes.at("model.norm.weight"), (Shape{64}));
  EXPECT_EQ(shapes.at("lm_head.weight"), (Shape{257, 64}));
  EXPECT_EQ(shapes.at("model.layers.2.input_layernorm.weight"), (Shape{64}));
  EXPECT_EQ(shapes.at("model.layers.2.post_attention_layernorm.weight"), (Shape{64}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.q_proj.weight"), (Shape{256, 64}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.k_proj.weight"), (Shape{64, 64}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.v_proj.weight"), (Shape{64, 64}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.o_proj.weight"), (Shape{64, 256}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.gate_proj.weight"), (Shape{172, 64}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.up_proj.weight"), (Shape{172, 64}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.down_proj.weight"), (Shape{64, 172}));

  config.tied_embeddings = true;
  EXPECT_EQ(model_parameters(config).size(), 2U + 9 * 3);
}

TEST(ModelParameters, OfThePapersModelAreAsManyAsThePaperSays) {
  std::size_t elements = 0;
  for (const Parameter& parameter : block_parameters(find_config("paper-7b").config, 0)) {
    if (parameter.is_matrix()) elements += parameter.elements();
  }
  EXPECT_EQ(elements, 268'435'456U);
}

}  // namespace
}  // namespace tsprun::detail::config_test
