// Computation with some columns of an MLP, wherever their weights come from. Gated: y = (σ(x·W1ᵀ) ∘ (x·W3ᵀ))·W2ᵀ, where σ is
// silu or gelu. Plain: y = gelu(x·W1ᵀ + b1)·W2ᵀ; then there is no W3, and `gate` is the only pre-activation.
#pragma once

#include "core/rank/rank.h"
#include "layers/schedules/biases.h"
#include "layers/schedules/packs.h"
#include "layers/schedules/strategy.h"

#include <cstddef>

namespace tsprun::detail {

/// Returns the form of an MLP's gelu. Of swiglu it means nothing.
inline kernels::Gelu gelu_of(Mlp mlp) {
  return mlp == Mlp::gelu || mlp == Mlp::geglu ? kernels::Gelu::exact : kernels::Gelu::tanh;
}

/// Pre-activations of some columns for some tokens, and what is computed from them, forward and backward.
class MlpColumns {
 public:
  /// Uses columns [first, first + count) of the tensors in `saved` if they exist, else allocates workspace for `rows` tokens.
  MlpColumns(Rank& rank, const ModelConfig& config, DType dtype, std::size_t rows, std::size_t first, std::size_t count,
             const MlpSaved& saved);

  /// Computes the pre-activations of X [rows, h].
  void project(const ConstTensor& X, const MlpMatrices& W, const Bias& bias) const;
  /// Returns the activation [rows, count], in the model's dtype.
  OwnedTensor activation() const;

  /// Gradients of the pre-activations, in the type of sums.
  struct Gradients {
    OwnedTensor gate;
    OwnedTensor up;
  };
  /// Returns the gradients of the pre-activations, computed from dY [rows, h].
  Gradients backward(const ConstTensor& dY, const MlpMatrices& W) const;
  /// Writes or adds to dX these columns' part of the input's gradient.
  void input_gradient(const Tensor& dX, const Gradients& d, const MlpMatrices& W, kernels::Write write) const;
  /// Computes dW1, dW3 and dW2ᵀ, replacing what was there, and adds to the bias' gradient. Frees `d` as soon as it isn't needed.
  void weight_gradients(const MlpMatrices& dW, const Bias& bias, Gradients d, const ConstTensor& X, const ConstTensor& dY) const;

 private:
  ComputeStream& compute() const { return rank_.compute(); }

  Rank& rank_;
  bool gated_;
  bool silu_;
  kernels::Gelu gelu_;  // unless silu_
  DType dtype_;
  OwnedTensor gate_memory_;
  OwnedTensor up_memory_;
  Tensor gate_;  // [rows, count]
  Tensor up_;
};

}  // namespace tsprun::detail
