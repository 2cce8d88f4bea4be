// Plans packs from the rows and columns that a slice has of each parameter.
#include "layers/schedules/packs.h"

#include <algorithm>
#include <stdexcept>

namespace tsprun::detail {

namespace {

Parameter of_role(const ModelConfig& config, std::size_t layer, ParameterRole role) {
  for (Parameter& parameter : block_parameters(config, layer)) {
    if (parameter.role == role) return std::move(parameter);
  }
  throw std::logic_error("a block has no such parameter");
}

/// Plans rows of a parameter as files store it.
PartPlan rows_part(Parameter parameter, std::size_t first, std::size_t count) {
  const safetensors::Rectangle block{.first_row = first, .rows = count, .first_column = 0, .columns = parameter.columns()};
  return {.parameter = std::move(parameter), .block = block};
}

/// Plans columns of a parameter, which are rows in memory.
PartPlan columns_part(Parameter parameter, std::size_t first, std::size_t count) {
  const safetensors::Rectangle block{.first_row = 0, .rows = parameter.rows(), .first_column = first, .columns = count};
  return {.parameter = std::move(parameter), .block = block, .transposed = true};
}

/// Plans the weights of a linear layer that make its outputs [first, first + count): rows in memory.
PartPlan outputs_part(const ModelConfig& config, Parameter matrix, std::size_t first, std::size_t count) {
  return config.type->inputs_first ? columns_part(std::move(matrix), first, count) : rows_part(std::move(matrix), first, count);
}

/// Plans the weights of a linear layer that its inputs [first, first + count) meet: rows in memory, the matrix transposed.
PartPlan inputs_part(const ModelConfig& config, Parameter matrix, std::size_t first, std::size_t count) {
  return config.type->inputs_first ? rows_part(std::move(matrix), first, count) : columns_part(std::move(matrix), first, count);
}

/// Plans the heads' part of W_Q, W_K or W_V, which may lie side by side in one matrix.
PartPlan projection_part(const ModelConfig& config, std::size_t layer, ParameterRole role, const HeadRange& heads) {
  const std::size_t first = heads.first * config.head_dim;
  const std::size_t count = heads.count * config.head_dim;
  if (!config.type->weight(role).empty()) return outputs_part(config, of_role(config, layer, role), first, count);
  const std::size_t before = role == ParameterRole::query ? 0
                             : role == ParameterRole::key ? config.query_width()
                                                          : config.query_width() + config.kv_width();
  return outputs_part(config, of_role(config, layer, ParameterRole::query_key_value), before + first, count);
}

}  // namespace

PackPlan attention_pack_plan(const ModelConfig& config, std::size_t layer, const HeadRange& queries, const HeadRange& kv) {
  const std::size_t d = config.head_dim;
  PackPlan pack;
  pack.parts.push_back(projection_part(config, layer, ParameterRole::key, kv));
  pack.parts.push_back(projection_part(config, layer, ParameterRole::value, kv));
  pack.parts.push_back(projection_part(config, layer, ParameterRole::query, queries));
  pack.parts.push_back(inputs_part(config, of_role(config, layer, ParameterRole::output), queries.first * d, queries.count * d));
  return pack;
}

PackPlan mlp_pack_plan(const ModelConfig& config, std::size_t layer, std::size_t first, std::size_t count) {
  PackPlan pack;
  if (config.gated_mlp()) pack.parts.push_back(outputs_part(config, of_role(config, layer, ParameterRole::gate), first, count));
  pack.parts.push_back(outputs_part(config, of_role(config, layer, ParameterRole::up), first, count));
  pack.parts.push_back(inputs_part(config, of_role(config, layer, ParameterRole::down), first, count));
  return pack;
}

PackPlan cut_pack(PackPlan cut, std::size_t first, std::size_t count) {
  std::size_t row = 0;
  for (PartPlan& part : cut.parts) {
    const std::size_t rows = part.rows();
    const std::size_t from = std::clamp(first, row, row + rows) - row;
    const std::size_t to = std::clamp(first + count, row, row + rows) - row;
    if (part.transposed) {
      part.block.first_column += from;
      part.block.columns = to - from;
    } else {
      part.block.first_row += from;
      part.block.rows = to - from;
    }
    row += rows;
  }
  return cut;
}

}  // namespace tsprun::detail
