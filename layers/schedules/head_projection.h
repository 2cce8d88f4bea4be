// What turns the products x·W_Qᵀ, x·W_Kᵀ and x·W_Vᵀ into q, k and v, and back: the one place that says in which order bias and
// rotation follow, for all strategies and for decoding. Products are the callers', who know where weights lie and when.
//
//   q = R(x·W_Qᵀ + b_Q), k = R(x·W_Kᵀ + b_K), v = x·W_Vᵀ + b_V; R rotates by position if the model's positions are rotary
#pragma once

#include "layers/layout/heads.h"
#include "layers/schedules/biases.h"
#include "layers/schedules/packs.h"

#include <cstddef>

namespace tsprun::detail {

/// What follows the product of some heads' W_Q, W_K or W_V. Borrows the stream.
class HeadProjection {
 public:
  /// `rotations` [S, d] has a row for each token; no dims: nothing is rotated.
  HeadProjection(ComputeStream& compute, const Bias& bias, const ConstTensor& rotations)
      : compute_(compute), bias_(bias), rotations_(rotations) {}

  /// Turns the product `x` [B, S, heads, d] into q, k or v, in place.
  void finish(const Tensor& x) const {
    bias_.add_to(compute_, matrix_of(x));
    if (rotations_.dims() > 0) compute_.rope(x, rotations_, kernels::Rotation::forward);
  }
  /// Turns the gradient `d` [B, S, heads, d] of q, k or v, in the type of sums, into that of the product, in place.
  void finish_backward(const Tensor& d) const {
    if (rotations_.dims() > 0) compute_.rope(d, rotations_, kernels::Rotation::inverse);
  }
  /// Adds to the gradients of the vectors. `d` is what finish_backward() left.
  void add_gradients(const Tensor& d) const { bias_.add_gradient(compute_, matrix_of(d)); }

 private:
  ComputeStream& compute_;
  Bias bias_;
  ConstTensor rotations_;
};

/// Those of a layer. Heads are numbered within the model.
class HeadProjections {
 public:
  /// `rotations` as in HeadProjection, for q and k. Borrows `compute` and `store`.
  HeadProjections(ComputeStream& compute, const ParameterStore& store, const ModelConfig& config, std::size_t layer,
                  const ConstTensor& rotations)
      : compute_(compute), biases_(store, config, layer), head_dim_(config.head_dim), rotations_(rotations) {}

  HeadProjection query(const HeadRange& heads) const { return of(biases_.query, heads, rotations_); }
  HeadProjection key(const HeadRange& heads) const { return of(biases_.key, heads, rotations_); }
  HeadProjection value(const HeadRange& heads) const { return of(biases_.value, heads, {}); }

 private:
  HeadProjection of(const Bias& bias, const HeadRange& heads, const ConstTensor& rotations) const {
    return {compute_, bias.slice(heads.first * head_dim_, heads.count * head_dim_), rotations};
  }

  ComputeStream& compute_;
  BlockBiases biases_;
  std::size_t head_dim_;
  ConstTensor rotations_;
};

}  // namespace tsprun::detail
