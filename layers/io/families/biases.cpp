// The field attention_bias, which several families have.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kAttentionBias = "attention_bias";

}  // namespace

void read_attention_bias(ConfigFields& fields, ModelConfig& config) {
  const bool all = fields.flag(kAttentionBias, false);
  std::vector<LayerSpec> layers;
  for (std::size_t i = 0; i < config.layers; ++i) {
    LayerSpec& layer = layers.emplace_back(config.layer(i));
    Biases& biases = layer.biases;
    biases.query = biases.key = biases.value = biases.output = all;
  }
  config.specs = LayerSpecs(std::move(layers));
}

void write_attention_bias(const ModelConfig& config, nlohmann::json& object) {
  nlohmann::json& field = object[std::string(kAttentionBias)];
  if (field.is_null()) field = config.layer(0).biases.query;
}

}  // namespace tsprun::detail::families
