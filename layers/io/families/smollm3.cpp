// SmolLM3: Llama's form, whose every fourth layer rotates nothing (NoPE). Special: no_rope_layers has a number for each layer, 1
// where it rotates q and k and 0 where it doesn't; a file without it has no_rope_layer_interval instead, 4 unless it says
// another, and layers number interval, 2·interval, … from 1 rotate nothing. With use_sliding_window
// they have a window (sliding_window), unless layer_types names others. Biases (attention_bias, mlp_bias) are refused. A file
// without rope_theta has 2,000,000, one without num_key_value_heads 4.
//
// Sources: huggingface/transformers, src/transformers/models/smollm3/{configuration,modular}_smollm3.py; ggml-org/llama.cpp,
// src/models/smollm3.cpp.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kRotates = "no_rope_layers";
constexpr std::size_t kUsualInterval = 4;

void read_layers(ConfigFields& fields, ModelConfig& config) {
  const std::size_t interval = fields.size("no_rope_layer_interval", kUsualInterval);
  const nlohmann::json* list = fields.find(kRotates);
  if (list != nullptr) fields.entries(kRotates, config.layers, kMaxLayers);  // those after the last layer count for nothing
  std::vector<LayerSpec> layers(config.layers, config.layer(0));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (list != nullptr && (*list)[i] != 0 && (*list)[i] != 1)
      fields.refuse_entry(kRotates, i, "1 (rotary positions) or 0 (none)");
    layers[i].rotary_positions = list != nullptr ? (*list)[i] == 1 : (i + 1) % interval != 0;
  }
  config.specs = LayerSpecs(std::move(layers));
}

void write_layers(const ModelConfig& config, nlohmann::json& object) {
  nlohmann::json& list = object[std::string(kRotates)];
  if (!list.is_null()) return;
  for (std::size_t i = 0; i < config.layers; ++i) list.push_back(config.layer(i).rotary_positions ? 1 : 0);
}

}  // namespace

ModelType smollm3() {
  ModelType type = llama();
  type.name = "smollm3";
  type.architectures = {"SmolLM3ForCausalLM", "SmolLM3Model"};
  type.model.rope_theta = 2'000'000;
  type.restricted = type.restricted.first(type.restricted.size() - 1);  // all but Llama's last row: fields of unlike layers
  type.read_layers = read_layers;
  type.write_layers = write_layers;
  type.window = WindowField::unrotated_layers;
  type.kv_heads = 4;
  type.max_positions = 32768;
  type.tied_embeddings = true;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
