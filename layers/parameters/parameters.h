// The parameters of a model, with names and shapes as Hugging Face stores them. The model's type (io/model_type.h) says whether
// linear weights are [out, in] or [in, out], and whether Q, K and V, or gate and up, lie side by side in one matrix; its features
// say which there are.
#pragma once

#include "layers/io/config.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tsprun::detail {

/// A parameter: what it is, and its name and shape in files.
struct Parameter {
  std::string name;  ///< "model.layers.0.self_attn.q_proj.weight"
  ParameterRole role;
  std::size_t layer;               ///< 0 outside the blocks
  std::vector<std::size_t> shape;  ///< as stored: matrices [out, in] or [in, out], norm gains [h], biases [out]
  bool gains_from_one = false;     ///< gains of its model are 1 + w, so that fresh ones are 0

  bool is_matrix() const { return shape.size() == 2; }
  std::size_t rows() const { return is_matrix() ? shape[0] : 1; }  ///< a vector is one row
  std::size_t columns() const { return shape.back(); }
  std::size_t elements() const { return rows() * columns(); }
};

/// Returns whether every block has its own parameter of this role.
constexpr bool is_of_block(ParameterRole role) { return role >= kFirstOfBlock && role <= kLastOfBlock; }
/// Returns the elements of all parameters of this role that layers [first, first + layers) have, or, if it isn't a block's, of
/// the model's one; 0 if there are none.
std::size_t elements_of(const ModelConfig& config, ParameterRole role, std::size_t first, std::size_t layers);

/// Returns the parameter's name in a model folder that tsprun writes: the name in transformers' state dict, which may have a
/// prefix (ModelType::exported_prefix). Readers find parameters with and without it.
std::string exported_name(const ModelConfig& config, const Parameter& parameter);

/// Returns the parameters of one block: norm, projections and output of attention, then norm and matrices of the MLP, each with
/// its bias behind it; norms behind a sublayer follow its matrices.
std::vector<Parameter> block_parameters(const ModelConfig& config, std::size_t layer);

/// Returns all parameters of the model: embedding, learned positions and those of layers' inputs if it has them, blocks, final
/// norm, the head unless it is tied, and its bias if it has one.
std::vector<Parameter> model_parameters(const ModelConfig& config);

}  // namespace tsprun::detail
