#include "layers/parameters/parameters.h"

#include <fmt/format.h>

#include <iterator>

namespace tsprun::detail {

namespace {

std::vector<Parameter> llama_block(const ModelConfig& config, std::size_t layer) {
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

std::vector<Parameter> gpt2_block(const ModelConfig& config, std::size_t layer) {
  const std::size_t h = config.hidden;
  const std::size_t f = config.intermediate;
  const auto of_layer = [layer](std::string_view part) { return fmt::format("h.{}.{}", layer, part); };
  return {
      {of_layer("ln_1.weight"), ParameterRole::attention_norm, layer, {h}},
      {of_layer("ln_1.bias"), ParameterRole::attention_norm_bias, layer, {h}},
      {of_layer("attn.c_attn.weight"), ParameterRole::query_key_value, layer, {h, 3 * h}},
      {of_layer("attn.c_attn.bias"), ParameterRole::query_key_value_bias, layer, {3 * h}},
      {of_layer("attn.c_proj.weight"), ParameterRole::output, layer, {h, h}},
      {of_layer("attn.c_proj.bias"), ParameterRole::output_bias, layer, {h}},
      {of_layer("ln_2.weight"), ParameterRole::mlp_norm, layer, {h}},
      {of_layer("ln_2.bias"), ParameterRole::mlp_norm_bias, layer, {h}},
      {of_layer("mlp.c_fc.weight"), ParameterRole::up, layer, {h, f}},
      {of_layer("mlp.c_fc.bias"), ParameterRole::up_bias, layer, {f}},
      {of_layer("mlp.c_proj.weight"), ParameterRole::down, layer, {f, h}},
      {of_layer("mlp.c_proj.bias"), ParameterRole::down_bias, layer, {h}},
  };
}

}  // namespace

bool is_bias(ParameterRole role) {
  switch (role) {
    case ParameterRole::attention_norm_bias:
    case ParameterRole::query_key_value_bias:
    case ParameterRole::output_bias:
    case ParameterRole::mlp_norm_bias:
    case ParameterRole::up_bias:
    case ParameterRole::down_bias:
    case ParameterRole::final_norm_bias: return true;
    default: return false;
  }
}

std::string exported_name(const ModelConfig& config, const Parameter& parameter) {
  const bool prefixed = config.family == ModelFamily::gpt2 && parameter.role != ParameterRole::head;
  return prefixed ? "transformer." + parameter.name : parameter.name;
}

std::vector<Parameter> block_parameters(const ModelConfig& config, std::size_t layer) {
  return config.family == ModelFamily::gpt2 ? gpt2_block(config, layer) : llama_block(config, layer);
}

std::vector<Parameter> model_parameters(const ModelConfig& config) {
  const bool gpt2 = config.family == ModelFamily::gpt2;
  const std::size_t h = config.hidden;
  std::vector<Parameter> all;
  all.push_back({gpt2 ? "wte.weight" : "model.embed_tokens.weight", ParameterRole::embedding, 0, {config.vocabulary, h}});
  if (gpt2) all.push_back({"wpe.weight", ParameterRole::positions, 0, {config.max_positions, h}});
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    std::vector<Parameter> block = block_parameters(config, layer);
    all.insert(all.end(), std::make_move_iterator(block.begin()), std::make_move_iterator(block.end()));
  }
  all.push_back({gpt2 ? "ln_f.weight" : "model.norm.weight", ParameterRole::final_norm, 0, {h}});
  if (gpt2) all.push_back({"ln_f.bias", ParameterRole::final_norm_bias, 0, {h}});
  if (!config.tied_embeddings) all.push_back({"lm_head.weight", ParameterRole::head, 0, {config.vocabulary, h}});
  return all;
}

}  // namespace tsprun::detail
