// Layers of one model whose norms stand in unlike places, and a family whose files have a name for every role: a mix that no
// family has.
#pragma once

#include "layers/io/model_type.h"

#include <algorithm>
#include <vector>

namespace tsprun::detail::test {

/// Returns Llama's family with names for the biases of all norms, norms behind sublayers, and all biases of linear layers, the
/// head's among them.
inline const ModelType& every_role() {
  static const std::vector<WeightName> names = [] {
    const std::span<const WeightName> llama = model_type("llama").weights;
    std::vector<WeightName> all(llama.begin(), llama.end());
    for (const WeightName& name :
         {WeightName{ParameterRole::attention_norm_bias, "model.layers.{}.input_layernorm.bias"},
          WeightName{ParameterRole::post_attention_norm, "model.layers.{}.behind_attention.weight"},
          WeightName{ParameterRole::post_attention_norm_bias, "model.layers.{}.behind_attention.bias"},
          WeightName{ParameterRole::mlp_norm_bias, "model.layers.{}.post_attention_layernorm.bias"},
          WeightName{ParameterRole::down_bias, "model.layers.{}.mlp.down_proj.bias"},
          WeightName{ParameterRole::post_mlp_norm, "model.layers.{}.behind_mlp.weight"},
          WeightName{ParameterRole::post_mlp_norm_bias, "model.layers.{}.behind_mlp.bias"},
          WeightName{ParameterRole::final_norm_bias, "model.norm.bias"}, WeightName{ParameterRole::head_bias, "lm_head.bias"}})
      all.push_back(name);
    std::ranges::sort(all, {}, &WeightName::role);
    return all;
  }();
  static const ModelType type = [] {
    ModelType every = model_type("llama");
    every.weights = names;
    return every;
  }();
  return type;
}

/// Returns four layers, one for each place of norms, of which one norms all heads together; the first and the last add biases to
/// their sublayers' results. The one that norms all heads together has heads of its own size.
inline LayerSpecs unlike_norms() {
  const Biases last{.output = true, .down = true};
  return LayerSpecs(std::vector<LayerSpec>{{.biases = last, .norms = NormPlaces::around},
                                           {.norms = NormPlaces::shared},
                                           {.query_key_norm = QueryKeyNorm::rows, .norms = NormPlaces::after, .head_dim = 6},
                                           {.biases = last}});
}

}  // namespace tsprun::detail::test
