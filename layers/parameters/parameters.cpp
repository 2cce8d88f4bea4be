// Lists a model's parameters with the names and shapes of its type.
#include "layers/parameters/parameters.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <utility>

namespace tsprun::detail {

namespace {

/// Returns a parameter's shape as files store it; an empty one if the model, or such a layer, doesn't have it.
std::vector<std::size_t> shape_of(const ModelConfig& config, ParameterRole role, const LayerSpec& layer) {
  using Shape = std::vector<std::size_t>;
  const std::size_t h = config.hidden;
  const std::size_t a = config.query_width(layer);
  const std::size_t k = config.kv_width(layer);
  const std::size_t f = config.intermediate_of(layer);
  const std::size_t w = config.layer_input;
  const bool has_bias = config.norm == Norm::layer;
  const auto matrix = [&](std::size_t out, std::size_t in) {
    return config.type->inputs_first ? Shape{in, out} : Shape{out, in};
  };
  const auto only_if = [](bool exists, Shape shape) { return exists ? std::move(shape) : Shape(); };
  switch (role) {
    case ParameterRole::embedding: return {config.vocabulary, h};
    case ParameterRole::head: return only_if(!config.tied_embeddings, {config.vocabulary, h});
    case ParameterRole::head_bias: return only_if(config.head_bias, {config.vocabulary});
    case ParameterRole::positions: return only_if(config.learned_positions, {config.max_positions, h});
    case ParameterRole::query: return matrix(a, h);
    case ParameterRole::key: return only_if(layer.projects_keys(), matrix(k, h));
    case ParameterRole::value: return only_if(layer.projects_values(), matrix(k, h));
    case ParameterRole::query_key_value: return matrix(a + 2 * k, h);
    case ParameterRole::query_bias: return only_if(layer.biases.query, {a});
    case ParameterRole::key_bias: return only_if(layer.biases.key, {k});
    case ParameterRole::value_bias: return only_if(layer.biases.value, {k});
    case ParameterRole::query_norm: return only_if(layer.norms_queries_and_keys(), {config.query_norm_width(layer)});
    case ParameterRole::key_norm:
      return only_if(layer.norms_queries_and_keys() && layer.projects_keys(), {config.key_norm_width(layer)});
    case ParameterRole::query_key_value_bias: return only_if(layer.biases.projections() == 3, {a + 2 * k});
    case ParameterRole::output: return matrix(h, a);
    case ParameterRole::output_bias: return only_if(layer.biases.output, {h});
    case ParameterRole::gate: return only_if(config.gated_mlp(), matrix(f, h));
    case ParameterRole::up: return matrix(f, h);
    case ParameterRole::gate_up: return only_if(config.gated_mlp(), matrix(2 * f, h));
    case ParameterRole::up_bias: return only_if(layer.biases.up, {f});
    case ParameterRole::down: return matrix(h, f);
    case ParameterRole::down_bias: return only_if(layer.biases.down, {h});
    case ParameterRole::attention_norm: return only_if(layer.norm_before_attention(), {h});
    case ParameterRole::mlp_norm: return only_if(layer.norm_before_mlp(), {h});
    case ParameterRole::post_attention_norm:
    case ParameterRole::post_mlp_norm: return only_if(layer.norms_after(), {h});
    case ParameterRole::layer_input_embedding: return only_if(w > 0, {config.vocabulary, config.layers * w});
    case ParameterRole::layer_input_projection: return only_if(w > 0, {config.layers * w, h});
    case ParameterRole::layer_input_norm: return only_if(w > 0, {w});
    case ParameterRole::input_gate: return only_if(layer.takes_input, {w, h});
    case ParameterRole::input_result: return only_if(layer.takes_input, {h, w});
    case ParameterRole::post_input_norm: return only_if(layer.takes_input, {h});
    case ParameterRole::output_scale: return only_if(layer.scales_output, {1});
    case ParameterRole::final_norm: return {h};
    case ParameterRole::attention_norm_bias: return only_if(has_bias && layer.norm_before_attention(), {h});
    case ParameterRole::mlp_norm_bias: return only_if(has_bias && layer.norm_before_mlp(), {h});
    case ParameterRole::post_attention_norm_bias:
    case ParameterRole::post_mlp_norm_bias: return only_if(has_bias && layer.norms_after(), {h});
    case ParameterRole::final_norm_bias: return only_if(has_bias, {h});
  }
  return {};
}

/// Adds the parameters of these roles that the model has.
void append(std::vector<Parameter>& all, const ModelConfig& config, ParameterRole first, ParameterRole last, std::size_t layer) {
  for (const auto& [role, name] : config.type->weights) {
    if (role < first || role > last) continue;
    std::vector<std::size_t> shape = shape_of(config, role, config.layer(layer));
    if (!shape.empty())
      all.push_back({fmt::format(fmt::runtime(name), layer), role, layer, std::move(shape),
                     config.gains_from_one && role != ParameterRole::output_scale});
  }
}

}  // namespace

std::size_t elements_of(const ModelConfig& config, ParameterRole role, std::size_t first, std::size_t layers) {
  return config.specs.sum(first, is_of_block(role) ? layers : 1, [&](const LayerSpec& layer) {
    const std::vector<std::size_t> shape = shape_of(config, role, layer);
    return shape.empty() ? 0 : std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies());
  });
}

std::string exported_name(const ModelConfig& config, const Parameter& parameter) {
  const std::string_view prefix = parameter.role == ParameterRole::head ? std::string_view() : config.type->exported_prefix;
  return fmt::format("{}{}", prefix, parameter.name);
}

std::vector<Parameter> block_parameters(const ModelConfig& config, std::size_t layer) {
  std::vector<Parameter> block;
  append(block, config, kFirstOfBlock, kLastOfBlock, layer);
  return block;
}

std::vector<Parameter> model_parameters(const ModelConfig& config) {
  std::vector<Parameter> all;
  append(all, config, ParameterRole::embedding, ParameterRole::layer_input_norm, 0);
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    append(all, config, kFirstOfBlock, kLastOfBlock, layer);
  }
  append(all, config, ParameterRole::final_norm, ParameterRole::head_bias, 0);
  return all;
}

}  // namespace tsprun::detail
