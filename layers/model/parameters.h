// The parameters of a model: their names and shapes as Hugging Face's Llama stores them, linear weights as [out, in].
#pragma once

#include "layers/model/config.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tsp {

/// What a parameter is in the model. The letters are the paper's.
enum class ParameterRole { embedding, attention_norm, query, key, value, output, mlp_norm, gate, up, down, final_norm, head };

struct Parameter {
  std::string name;  ///< "model.layers.0.self_attn.q_proj.weight"
  ParameterRole role;
  std::size_t layer;               ///< 0 outside the blocks
  std::vector<std::size_t> shape;  ///< matrices [out, in], norm gains [h]

  bool is_matrix() const { return shape.size() == 2; }
  std::size_t rows() const { return is_matrix() ? shape[0] : 1; }  ///< a gain is one row
  std::size_t columns() const { return shape.back(); }
  std::size_t elements() const { return rows() * columns(); }
};

/// Those of one block: input_layernorm, q, k, v, o, post_attention_layernorm, gate, up, down.
std::vector<Parameter> block_parameters(const ModelConfig& config, std::size_t layer);

/// All of the model: embedding, blocks, final norm, and the head unless it is tied.
std::vector<Parameter> model_parameters(const ModelConfig& config);

}  // namespace tsp
