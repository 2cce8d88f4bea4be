#include "layers/model/parameters.h"

#include <fmt/format.h>

#include <iterator>

namespace tsp {

std::vector<Parameter> block_parameters(const ModelConfig& config, std::size_t layer) {
  const std::size_t h = config.hidden;
  const std::size_t a = config.query_width();
  const std::size_t k = config.kv_width();
  const std::size_t f = config.intermediate;
  const auto of_layer = [layer](std::string_view part) { return fmt::format("model.layers.{}.{}.weight", layer, part); };
  return {
      {of_layer("input_layernorm"), ParameterRole::attention_norm, layer, {h}},
      {of_layer("self_attn.q_proj"), ParameterRole::query, layer, {a, h}},
      {of_layer("self_attn.k_proj"), ParameterRole::key, layer, {k, h}},
      {of_layer("self_attn.v_proj"), ParameterRole::value, layer, {k, h}},
      {of_layer("self_attn.o_proj"), ParameterRole::output, layer, {h, a}},
      {of_layer("post_attention_layernorm"), ParameterRole::mlp_norm, layer, {h}},
      {of_layer("mlp.gate_proj"), ParameterRole::gate, layer, {f, h}},
      {of_layer("mlp.up_proj"), ParameterRole::up, layer, {f, h}},
      {of_layer("mlp.down_proj"), ParameterRole::down, layer, {h, f}},
  };
}

std::vector<Parameter> model_parameters(const ModelConfig& config) {
  std::vector<Parameter> all;
  all.push_back({"model.embed_tokens.weight", ParameterRole::embedding, 0, {config.vocabulary, config.hidden}});
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    std::vector<Parameter> block = block_parameters(config, layer);
    all.insert(all.end(), std::make_move_iterator(block.begin()), std::make_move_iterator(block.end()));
  }
  all.push_back({"model.norm.weight", ParameterRole::final_norm, 0, {config.hidden}});
  if (!config.tied_embeddings) all.push_back({"lm_head.weight", ParameterRole::head, 0, {config.vocabulary, config.hidden}});
  return all;
}

}  // namespace tsp
