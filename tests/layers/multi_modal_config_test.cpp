// Configurations of models that see images, of which the text model is read: published files, and what is refused by name.
#include "layers/io/multi_modal.h"
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::multi_modal_config_test {
namespace {

using nlohmann::json;
using test::elements_of;
using test::expect_read_back;
using test::parse;

/// Gemma 3 4B's config.json as the hub has it.
json gemma3() {
  return json::parse(R"({
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
                      "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false}})");
}

/// Mistral Small 3.1's config.json as the hub has it.
json mistral3() {
  return json::parse(R"({
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
    "multimodal_projector_bias": false, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
    "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
                    "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
                    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
                    "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": null, "use_cache": true,
                    "vocab_size": 131072},
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {"attention_dropout": 0.0, "head_dim": 64, "hidden_act": "gelu", "hidden_size": 1024, "image_size": 1540,
                      "model_type": "pixtral", "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14},
    "vision_feature_layer": -1})");
}

TEST(MultiModalConfig, Gemma3sTextModelIsRead) {
  const LoadedConfig loaded = parse(gemma3());
  ASSERT_EQ(loaded.warnings.size(), 1U);
  EXPECT_EQ(loaded.warnings.front(),
            "config.json: a model of model_type \"gemma3\" sees images, too; its text model alone is computed");
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(c.type->name, "gemma3_text");
  EXPECT_EQ(elements_of(c), 3'880'263'168U);  // as Hugging Face counts them
  EXPECT_EQ((std::vector<std::size_t>{c.query_heads, c.kv_heads, c.head_dim, c.vocabulary, c.max_positions}),
            (std::vector<std::size_t>{8, 4, 256, 262208, 131072}));
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ((std::vector<std::size_t>{c.layer(0).window, c.layer(5).window}), (std::vector<std::size_t>{1024, 0}));
}

/// What is saved is a text model's file.
TEST(MultiModalConfig, IsWrittenAsTheTextModels) {
  for (const json& object : {gemma3(), mistral3()}) {
    const ModelConfig config = parse(object).config;
    const json written = json::parse(hugging_face_json(config, "bfloat16", object.dump()));
    EXPECT_FALSE(written.contains("text_config") || written.contains("vision_config"));
    EXPECT_EQ(written.at("model_type"), config.type->name);
    EXPECT_EQ(written.at("architectures"), json::array({config.type->architectures.front()}));
    EXPECT_EQ(written.value("eos_token_id", json()), object.value("eos_token_id", json()));
    const LoadedConfig again = parse(written);
    EXPECT_TRUE(again.config.same_model(config));
    EXPECT_TRUE(again.warnings.empty());
    expect_read_back(config);
  }
}

TEST(MultiModalConfig, Mistral3sTextModelIsRead) {
  const ModelConfig c = parse(mistral3()).config;
  EXPECT_EQ(c.type->name, "mistral");
  EXPECT_EQ(elements_of(c), 23'572'403'200U);  // as Hugging Face counts them
  EXPECT_FALSE(c.tied_embeddings);
  json object = mistral3();
  for (const char* field : {"model_type", "num_attention_heads"}) object["text_config"].erase(field);
  EXPECT_TRUE(parse(object).config.same_model(c));
  object["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse(object).config.tied_embeddings);
  object["text_config"]["tie_word_embeddings"] = false;
  EXPECT_FALSE(parse(object).config.tied_embeddings);
  object = mistral3();
  object["text_config"] = {{"model_type", "ministral3"}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}};
  const ModelConfig usual = parse(object).config;
  EXPECT_EQ(usual.type->name, "ministral3");
  EXPECT_EQ((std::vector<std::size_t>{usual.hidden, usual.intermediate, usual.layers, usual.query_heads, usual.kv_heads,
                                      usual.head_dim, usual.vocabulary, usual.max_positions}),
            (std::vector<std::size_t>{4096, 14336, 34, 32, 8, 128, 131072, 262144}));
}

TEST(MultiModalConfig, RefusesWhatIsNotComputedByName) {
  json object = gemma3();
  object["text_config"]["mlp_bias"] = true;
  EXPECT_REFUSED(parse(object), "field \"text_config.mlp_bias\"");
  object = gemma3();
  object["text_config"]["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  EXPECT_REFUSED(parse(object), "\"text_config.rope_scaling.rope_type\"");
  object = gemma3();
  object["text_config"]["new_field"] = 1;
  EXPECT_NE(parse(object).warnings.back().find("\"text_config.new_field\" is not known"), std::string::npos);
  object["text_config"] = nullptr;
  EXPECT_REFUSED(parse(object), "\"text_config\": expected an object");
  object = gemma3();
  object["text_config"]["model_type"] = "llama";
  EXPECT_REFUSED(parse(object), "\"text_config.model_type\": expected \"gemma3_text\"");
  object = mistral3();
  object["text_config"]["model_type"] = "llama";
  EXPECT_REFUSED(parse(object), "\"text_config.model_type\": expected \"mistral\" or \"ministral3\"");
  object["architectures"] = {"Gemma3ForConditionalGeneration"};
  EXPECT_REFUSED(parse(object), "\"architectures[0]\"", "Mistral3ForConditionalGeneration");
  object = mistral3();
  object["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_REFUSED(parse(object), "\"quantization_config\"");
  object = gemma3();
  object["model_type"] = "llava";
  EXPECT_REFUSED(parse(object), "\"model_type\"");
}

TEST(MultiModalTensors, HaveTheirTextModelsNames) {
  for (const auto& [stored, name] : {std::pair{"language_model.model.norm.weight", "model.norm.weight"},
                                     {"language_model.lm_head.weight", "lm_head.weight"},
                                     {"model.language_model.layers.0.x", "model.layers.0.x"},
                                     {"lm_head.weight", "lm_head.weight"},
                                     {"model.norm.weight", "model.norm.weight"}})
    EXPECT_EQ(name_in_text_model(stored), name);
  for (const char* name : {"vision_tower.a.bias", "model.multi_modal_projector.a", "model.vision_tower.a", "model.audio_tower.a",
                           "model.embed_vision.a", "model.embed_audio.a"})
    EXPECT_TRUE(is_of_images(name)) << name;
  EXPECT_FALSE(is_of_images("model.layers.0.vision_tower."));
}

}  // namespace
}  // namespace tsprun::detail::multi_modal_config_test
