// Vectors that each layer gets of each token besides the residual, in models that have them:
//
//   e = (N(x·Pᵀ/√h) + √w·E[id])/√2                before the first layer, [L·w]: layer l gets the part e_l [w]
//   x ← x + N'((σ(x·G_lᵀ) ∘ e_l)·R_lᵀ)            behind the MLP of layer l
//
// In the first line x is the embedded token, and N norms each layer's part. Every rank computes this for its own tokens, with all
// of P, G, R and the norms; rows of the table E are cut over ranks as the vocabulary is, and the caller brings them.
#pragma once

#include "core/rank/rank.h"
#include "layers/io/config.h"
#include "layers/parameters/norm.h"

#include <cstddef>

namespace tsprun::detail {

/// A matrix that every rank has, and the tensor to which its gradient is added (no dims without training).
struct ReplicatedMatrix {
  Tensor values;
  Tensor gradient;
};

/// Weights with which the vectors of all layers are made.
struct InputWeights {
  ReplicatedMatrix projection;  ///< P [L·w, h]
  Tensor gain;                  ///< of N, [w]
  Tensor gain_gradient;
  bool adds_to_gain = true;  ///< false: another rank with the same tokens does
};

/// Weights with which a layer makes its term of its vectors.
struct LayerInputWeights {
  ReplicatedMatrix gate;    ///< G [w, h]
  ReplicatedMatrix result;  ///< Rᵀ [w, h]
  NormWeights norm;         ///< N'
};

/// Owner of the vectors of some tokens, and in training of their gradients. `rank` and `config` are borrowed.
class LayerInputs {
 public:
  /// Takes the tokens' rows of the table, [tokens, L·w], in the model's dtype, in memory of the category in which all that is
  /// kept is held.
  LayerInputs(Rank& rank, const ModelConfig& config, OwnedTensor table_rows, Category kept)
      : rank_(rank), config_(config), kept_(kept), values_(std::move(table_rows)) {}

  /// Makes the vectors of the embedded tokens x [tokens, h]. `trains`: a backward pass follows.
  void make(const ConstTensor& x, const InputWeights& weights, bool trains);
  /// Computes to = x + a layer's term; `to` may be `x`.
  void add(std::size_t layer, const Tensor& to, const Tensor& x, const LayerInputWeights& weights) const;
  /// Turns `d` [tokens, h], in the type of sums, from the gradient of that sum into that of x, and adds to the gradients of the
  /// weights. Each layer must be called once, before finish().
  void add_backward(std::size_t layer, const Tensor& d, const Tensor& x, const LayerInputWeights& weights);
  /// Adds to the gradient d of the embedded tokens, and to those of the weights. Returns the gradient of the table's rows.
  ConstTensor finish(const Tensor& d, const InputWeights& weights);

 private:
  DType dtype() const { return values_->dtype(); }
  std::size_t tokens() const { return values_->size(0); }
  OwnedTensor room(DType dtype, std::size_t width, std::string_view what) const {
    return rank_.tensor(Category::workspace, dtype, {tokens(), width}, what);
  }
  template <class View>
  View of(const View& all, std::size_t layer) const {
    return all.slice(1, layer * config_.layer_input, config_.layer_input);
  }
  OwnedTensor projected(const InputWeights& weights) const;
  OwnedTensor gated(std::size_t layer, const Tensor& gate) const;

  Rank& rank_;
  const ModelConfig& config_;
  Category kept_;
  OwnedTensor values_;     // [tokens, L·w]: rows of the table, then the vectors
  OwnedTensor x_;          // the embedded tokens, in training
  ConstTensor embedded_;   // the same, in make()
  OwnedTensor gradients_;  // [tokens, L·w], in the type of sums
};

}  // namespace tsprun::detail
