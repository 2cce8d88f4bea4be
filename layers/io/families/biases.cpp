// Fields that say whether the linear layers of a family add biases.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::families {

void read_biases(ConfigFields& fields, ModelConfig& config, std::string_view field, const Biases& which, bool usual) {
  const bool any = fields.flag(field, usual);
  std::vector<LayerSpec> layers;
  for (std::size_t i = 0; i < config.layers; ++i) layers.emplace_back(config.layer(i)).biases = any ? which : Biases{};
  config.specs = LayerSpecs(std::move(layers));
}

void write_biases(const ModelConfig& config, nlohmann::json& object, std::string_view field) {
  if (nlohmann::json& at = object[std::string(field)]; at.is_null()) at = config.layer(0).biases != Biases{};
}

void read_attention_bias(ConfigFields& fields, ModelConfig& config) {
  read_biases(fields, config, "attention_bias", {.query = true, .key = true, .value = true, .output = true}, false);
}

void write_attention_bias(const ModelConfig& config, nlohmann::json& object) { write_biases(config, object, "attention_bias"); }

}  // namespace tsprun::detail::families
