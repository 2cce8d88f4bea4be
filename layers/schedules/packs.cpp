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
  const safetensors::Block block{.first_row = first, .rows = count, .first_column = 0, .columns = parameter.columns()};
  return {.parameter = std::move(parameter), .block = block};
}

/// Plans columns of a parameter, which are rows in memory.
PartPlan columns_part(Parameter parameter, std::size_t first, std::size_t count) {
  const safetensors::Block block{.first_row = 0, .rows = parameter.rows(), .first_column = first, .columns = count};
  return {.parameter = std::move(parameter), .block = block, .transposed = true};
}

}  // namespace

PackPlan attention_pack_plan(const ModelConfig& config, std::size_t layer, const HeadRange& queries, const HeadRange& kv) {
  const std::size_t d = config.head_dim;
  PackPlan pack;
  if (config.family == ModelFamily::gpt2) {
    // Stored as [in, out], with Q, K and V side by side.
    const Parameter projections = of_role(config, layer, ParameterRole::query_key_value);
    const std::size_t h = config.hidden;
    pack.parts.push_back(columns_part(projections, h + kv.first * d, kv.count * d));
    pack.parts.push_back(columns_part(projections, 2 * h + kv.first * d, kv.count * d));
    pack.parts.push_back(columns_part(projections, queries.first * d, queries.count * d));
    pack.parts.push_back(rows_part(of_role(config, layer, ParameterRole::output), queries.first * d, queries.count * d));
    return pack;
  }
  pack.parts.push_back(rows_part(of_role(config, layer, ParameterRole::key), kv.first * d, kv.count * d));
  pack.parts.push_back(rows_part(of_role(config, layer, ParameterRole::value), kv.first * d, kv.count * d));
  pack.parts.push_back(rows_part(of_role(config, layer, ParameterRole::query), queries.first * d, queries.count * d));
  pack.parts.push_back(columns_part(of_role(config, layer, ParameterRole::output), queries.first * d, queries.count * d));
  return pack;
}

PackPlan mlp_pack_plan(const ModelConfig& config, std::size_t layer, std::size_t first, std::size_t count) {
  PackPlan pack;
  if (config.family == ModelFamily::gpt2) {
    pack.parts.push_back(columns_part(of_role(config, layer, ParameterRole::up), first, count));
    pack.parts.push_back(rows_part(of_role(config, layer, ParameterRole::down), first, count));
    return pack;
  }
  pack.parts.push_back(rows_part(of_role(config, layer, ParameterRole::gate), first, count));
  pack.parts.push_back(rows_part(of_role(config, layer, ParameterRole::up), first, count));
  pack.parts.push_back(columns_part(of_role(config, layer, ParameterRole::down), first, count));
  return pack;
}

std::size_t pack_rows(const PackPlan& plan) {
  std::size_t rows = 0;
  for (const PartPlan& part : plan.parts) rows += part.rows();
  return rows;
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
