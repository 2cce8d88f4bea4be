// What is computed with some columns of an MLP, whoever has brought their weights: gated, y = (σ(x·W1ᵀ) ∘ (x·W3ᵀ))·W2ᵀ, or plain,
// y = gelu(x·W1ᵀ + b1)·W2ᵀ, where there is no W3, and `gate` is the one pre-activation.
#pragma once

#include "core/rank/rank.h"
#include "layers/biases.h"
#include "layers/model/strategy.h"
#include "layers/packs.h"

#include <cstddef>

namespace tsprun {

class MlpColumns {
 public:
  /// Columns [first, first + count) of what `saved` has, or memory of this visit, for `rows` tokens.
  MlpColumns(Rank& rank, const ModelConfig& config, DType dtype, std::size_t rows, std::size_t first, std::size_t count,
             const MlpSaved& saved);

  /// The pre-activations of X [rows, h].
  void project(const ConstTensor& X, const MlpMatrices& W, const Bias& bias) const;
  /// The activation [rows, count], in the model's dtype.
  OwnedTensor activation() const;

  /// Gradients of the pre-activations, in the type of sums.
  struct Gradients {
    OwnedTensor gate;
    OwnedTensor up;
  };
  /// From dY [rows, h].
  Gradients backward(const ConstTensor& dY, const MlpMatrices& W) const;
  /// dX = their part of the input's gradient, written or added.
  void input_gradient(const Tensor& dX, const Gradients& d, const MlpMatrices& W, kernels::Write write) const;
  /// dW1, dW3, dW2ᵀ, all replaced, and the bias' gradient, added to. Ends `d`.
  void weight_gradients(const MlpMatrices& dW, const Bias& bias, Gradients d, const ConstTensor& X, const ConstTensor& dY) const;

 private:
  ComputeStream& compute() const { return rank_.compute(); }

  Rank& rank_;
  bool gated_;
  kernels::Gelu gelu_;
  DType dtype_;
  OwnedTensor gate_memory_;
  OwnedTensor up_memory_;
  Tensor gate_;  // [rows, count]
  Tensor up_;
};

}  // namespace tsprun
