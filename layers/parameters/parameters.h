// The parameters of a model, with names and shapes as Hugging Face stores them. Llama's linear weights are [out, in]; GPT-2's are
// [in, out], and its Q, K and V lie side by side in one matrix.
#pragma once

#include "layers/io/config.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tsprun::detail {

/// Role of a parameter in the model.
enum class ParameterRole {
  embedding,
  positions,  ///< learned, [max_positions, h]
  attention_norm,
  attention_norm_bias,
  query,
  key,
  value,
  query_key_value,  ///< W_Q, W_K and W_V in one matrix, [h, 3h]
  query_key_value_bias,
  output,
  output_bias,
  mlp_norm,
  mlp_norm_bias,
  gate,
  up,  ///< W_3; without a gate W_1
  up_bias,
  down,
  down_bias,
  final_norm,
  final_norm_bias,
  head
};

/// Returns whether the parameter is a bias, which starts as zeros. All other vectors are norm gains.
bool is_bias(ParameterRole role);

/// A parameter: what it is, and its name and shape in files.
struct Parameter {
  std::string name;  ///< "model.layers.0.self_attn.q_proj.weight"
  ParameterRole role;
  std::size_t layer;               ///< 0 outside the blocks
  std::vector<std::size_t> shape;  ///< as stored: matrices [out, in] or [in, out], norm gains [h], biases [out]

  bool is_matrix() const { return shape.size() == 2; }
  std::size_t rows() const { return is_matrix() ? shape[0] : 1; }  ///< a vector is one row
  std::size_t columns() const { return shape.back(); }
  std::size_t elements() const { return rows() * columns(); }
};

/// Returns the parameter's name in a model folder that tsprun writes: the name in transformers' state dict (GPT2LMHeadModel puts
/// "transformer." before all but the head). Readers find GPT-2's parameters with and without that prefix.
std::string exported_name(const ModelConfig& config, const Parameter& parameter);

/// Returns the parameters of one block. Llama: input_layernorm, q, k, v, o, post_attention_layernorm, gate, up, down. GPT-2:
/// ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj, each a weight and a bias.
std::vector<Parameter> block_parameters(const ModelConfig& config, std::size_t layer);

/// Returns all parameters of the model: embedding, learned positions if it has them, blocks, final norm, and the head unless it
/// is tied.
std::vector<Parameter> model_parameters(const ModelConfig& config);

}  // namespace tsprun::detail
