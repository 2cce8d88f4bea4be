// The weights of a block, or those outside the blocks, found by role: the norms and linear layers of the reference, whichever
// features the model has and however its files store the matrices.
#pragma once

#include "layers/io/config.h"
#include "layers/parameters/parameters.h"

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::reference {

/// Tensors by the names of layers/parameters/parameters.h. Elements are in row-major order; matrices are [out, in] or [in, out],
/// as they are stored.
template <class T>
using Tensors = std::map<std::string, std::vector<T>, std::less<>>;

/// Sizes of a layer: the model's, unless the layer has others.
struct LayerSizes {
  std::size_t kv_heads;
  std::size_t head_dim;
  std::size_t intermediate;
  LayerSizes(const ModelConfig& config, std::size_t layer);
};

/// The weights of one layer with their gradients; all borrowed. Backward functions add to `gradients`, which is null if none is
/// called.
template <class T>
class Layer {
 public:
  /// `parameters` are those of one layer, or others of which no layer has more than one.
  Layer(const ModelConfig& config, const std::vector<Parameter>& parameters, const Tensors<T>& weights,
        Tensors<T>* gradients = nullptr);

  /// Returns a weight, or its gradient; an empty vector if the model has none of this role.
  const std::vector<T>& weight(ParameterRole role) const;
  std::vector<T>& gradient(ParameterRole role);

  /// Returns the gain of a norm: the weight, or 1 + the weight.
  std::vector<T> gain(ParameterRole role) const;
  /// Returns the model's norm of x [N, h]. A norm that has a bias has it in the role behind that of the gain.
  std::vector<T> norm(const std::vector<T>& x, ParameterRole gain) const;
  /// Adds the gradients of norm() to dx and the weights' gradients.
  void norm_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, ParameterRole gain);

  /// Returns x·Wᵀ + b [N, out] for x [N, in] and a role of a matrix: query, key, value, output, gate, up, down or head. There is
  /// a b only where the model has it. A tied head is the embedding.
  std::vector<T> linear(const std::vector<T>& x, ParameterRole matrix) const;
  /// Adds the gradients of linear() to dx and the weights' gradients.
  void linear_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, ParameterRole matrix);

 private:
  /// Place of the weights of a linear layer.
  struct Place {
    std::size_t in;
    std::size_t out;
    ParameterRole bias;
    std::size_t first_bias = 0;  ///< in the vector of this role
    ParameterRole matrix = {};
    std::size_t first = 0;  ///< output in the stored matrix
    std::size_t width = 0;  ///< outputs of the stored matrix
    bool inputs_first = false;

    std::size_t index(std::size_t o, std::size_t i) const { return inputs_first ? i * width + first + o : (first + o) * in + i; }
  };
  Place place(ParameterRole matrix) const;

  const ModelConfig& config_;
  LayerSizes sizes_;
  const Tensors<T>& weights_;
  Tensors<T>* gradients_;
  std::map<ParameterRole, std::string> names_;
  std::vector<T> none_;
};

}  // namespace tsprun::detail::reference
