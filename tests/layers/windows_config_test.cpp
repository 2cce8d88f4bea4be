// Windows of layers in config.json: which layers have one, what is refused by name, and what is written back.
#include "tests/layers/config_support.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::windows_config_test {
namespace {

using nlohmann::json;
using test::expect_read_back;
using test::parse;

/// A small config.json of a family, of four layers.
json small(const std::string& type, const std::string& architecture) {
  return {{"model_type", type},
          {"architectures", {architecture}},
          {"hidden_size", 16},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 24},
          {"vocab_size", 31},
          {"head_dim", 4}};
}
json mistral() { return small("mistral", "MistralForCausalLM"); }
json qwen3() { return small("qwen3", "Qwen3ForCausalLM"); }
json smollm3() { return small("smollm3", "SmolLM3ForCausalLM"); }

/// The windows of the layers, from the first.
std::vector<std::size_t> windows(const json& object) {
  const LoadedConfig loaded = parse(object);
  EXPECT_TRUE(loaded.warnings.empty()) << loaded.warnings.front();
  expect_read_back(loaded.config);
  const LoadedConfig again = parse_config(hugging_face_json(loaded.config, "float32", object.dump()), "again");
  EXPECT_TRUE(again.config.same_model(loaded.config));
  std::vector<std::size_t> found;
  for (std::size_t layer = 0; layer < loaded.config.layers; ++layer) found.push_back(loaded.config.layer(layer).window);
  return found;
}

using Windows = std::vector<std::size_t>;

TEST(ConfigWindows, OfMistralAreAllAlike) {
  json object = mistral();
  EXPECT_EQ(windows(object), Windows(4, 4096));  // as Hugging Face's class has it
  object["sliding_window"] = nullptr;
  EXPECT_EQ(windows(object), Windows(4, 0));
  object["sliding_window"] = 7;
  EXPECT_EQ(windows(object), Windows(4, 7));
  object["use_sliding_window"] = false;  // means nothing here
  EXPECT_EQ(windows(object), Windows(4, 7));
  object["layer_types"] = json(4, "sliding_attention");
  EXPECT_EQ(windows(object), Windows(4, 7));
  object["layer_types"][2] = "full_attention";
  EXPECT_REFUSED(parse(object), "\"layer_types[2]\": expected \"sliding_attention\"", "sliding_window in every layer");
  object["sliding_window"] = 0;
  EXPECT_REFUSED(parse(object), "\"sliding_window\"", "found 0");
}

TEST(ConfigWindows, OfQwenAreThoseOfLaterLayersIfTheyAreUsed) {
  json object = qwen3();
  object["sliding_window"] = 5;
  EXPECT_EQ(windows(object), Windows(4, 0));
  object["max_window_layers"] = 3;
  EXPECT_EQ(windows(object), Windows(4, 0));
  object["use_sliding_window"] = true;
  EXPECT_EQ(windows(object), (Windows{0, 0, 0, 5}));
  object.erase("max_window_layers");
  EXPECT_EQ(windows(object), Windows(4, 0));  // from layer 28 on
  object["max_window_layers"] = 0;
  EXPECT_EQ(windows(object), Windows(4, 5));
  object["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(windows(object), (Windows{5, 0, 5, 0}));
  object.erase("sliding_window");
  EXPECT_EQ(windows(object), (Windows{4096, 0, 4096, 0}));
  object["layer_types"][1] = "chunked_attention";
  EXPECT_REFUSED(parse(object), "\"layer_types[1]\": expected \"full_attention\" or \"sliding_attention\"");
  object["layer_types"] = {"sliding_attention"};
  EXPECT_REFUSED(parse(object), "\"layer_types\"", "4");
  object["layer_types"] = json(4, "sliding_attention");
  object["sliding_window"] = nullptr;
  EXPECT_REFUSED(parse(object), "\"layer_types[0]\": expected \"full_attention\", for the file has no window in use");
  object["sliding_window"] = 5;
  object["use_sliding_window"] = false;
  EXPECT_REFUSED(parse(object), "\"layer_types[0]\": expected \"full_attention\", for the file has no window in use");
}

TEST(ConfigWindows, OfSmolLM3AreThoseOfLayersThatRotateNothing) {
  json object = smollm3();
  object["no_rope_layers"] = {0, 1, 1, 0};
  object["sliding_window"] = 6;
  EXPECT_EQ(windows(object), Windows(4, 0));
  object["use_sliding_window"] = true;
  EXPECT_EQ(windows(object), (Windows{6, 0, 0, 6}));
  object["layer_types"] = {"full_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(windows(object), (Windows{0, 0, 6, 0}));
  object["use_sliding_window"] = "yes";
  EXPECT_REFUSED(parse(object), "\"use_sliding_window\"");
}

TEST(ConfigWindows, AreWrittenWhereTheFileDoesNotSayThem) {
  for (json object : {mistral(), qwen3(), smollm3()}) {
    object["sliding_window"] = 3;
    if (object["model_type"] != "mistral") {
      object["use_sliding_window"] = true;
      object["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
    }
    const ModelConfig config = parse(object).config;
    const json written = json::parse(hugging_face_json(config, "float32"));
    EXPECT_EQ(written["sliding_window"], 3);
    EXPECT_EQ(written.value("layer_types", json()), object.value("layer_types", json()));
    EXPECT_TRUE(parse(written).config.same_model(config)) << object["model_type"];
  }
}

}  // namespace
}  // namespace tsprun::detail::windows_config_test
