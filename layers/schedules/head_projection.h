// What turns the products x·W_Qᵀ, x·W_Kᵀ and x·W_Vᵀ into q, k and v, and back: the one place that says in which order bias, norm
// and rotation follow, for all strategies and for decoding. Products are the callers', who know where weights lie and when.
//
//   q = R(N(x·W_Qᵀ + b_Q)), k = R(N(x·W_Kᵀ + b_K)), v = x·W_Vᵀ + b_V; N normalises each head and R rotates by
//   position in layers that do so
#pragma once

#include "layers/layout/heads.h"
#include "layers/layout/rotary_tables.h"
#include "layers/schedules/biases.h"
#include "layers/schedules/packs.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// Computes what follows the product of some heads' W_Q, W_K or W_V. Borrows the stream.
class HeadProjection {
 public:
  /// Norm of each head: its gain [d] with the gradient, epsilon, and what the gain means. A gain without dims: no norm.
  struct HeadNorm {
    Bias gain;
    double epsilon = 0;
    kernels::NormForm form = {};
  };
  /// `rotations` [S, r] has a row for each token, or those that `rows` names; no dims: nothing is rotated.
  HeadProjection(ComputeStream& compute, const Bias& bias, const HeadNorm& norm, const ConstTensor& rotations,
                 kernels::RotaryPairs pairs, std::span<const std::uint32_t> rows)
      : compute_(compute), bias_(bias), norm_(norm), rotations_(rotations), pairs_(pairs), rows_(rows) {}

  /// Turns a product [B, S, heads, d] into q, k or v in `x`. The two may be the same tensor. If they aren't, there must be a
  /// norm, and `product` with its bias is left for finish_backward().
  void finish(const Tensor& x, const Tensor& product) const {
    bias_.add_to(compute_, matrix_of(product));
    if (norm_.gain.exists()) compute_.rms_norm(x, product, norm_.gain.values, norm_.epsilon, norm_.form);
    if (rotations_.dims() > 0) compute_.rope(x, rotations_, kernels::Rotation::forward, pairs_, rows_);
  }
  /// Turns the gradient `d` [B, S, heads, d] of q, k or v, in the type of sums, into that of the product, in place, and adds to
  /// the gradient of the norm's gain. `product` is needed where there is a norm.
  void finish_backward(const Tensor& d, const ConstTensor& product) const {
    if (rotations_.dims() > 0) compute_.rope(d, rotations_, kernels::Rotation::transposed, pairs_, rows_);
    const auto& [gain, epsilon, form] = norm_;
    if (gain.exists())
      compute_.rms_norm_backward(d, gain.gradient, d, product, gain.values, epsilon, kernels::Write::replace, form);
  }
  /// Adds to the gradient of the bias. `d` is what finish_backward() left.
  void add_gradients(const Tensor& d) const { bias_.add_gradient(compute_, matrix_of(d)); }

 private:
  ComputeStream& compute_;
  Bias bias_;
  HeadNorm norm_;
  ConstTensor rotations_;
  kernels::RotaryPairs pairs_;
  std::span<const std::uint32_t> rows_;
};

/// Projections of a layer's heads, which are numbered within the model.
class HeadProjections {
 public:
  /// Takes the rotations of the tokens that will be projected, and the rows of their tables that turn these, as kernels::rope()
  /// does. Borrows all.
  HeadProjections(ComputeStream& compute, const ParameterStore& store, const ModelConfig& config, std::size_t layer,
                  const RotaryTables& rotations, std::span<const std::uint32_t> rows = {})
      : compute_(compute),
        biases_(store, config, layer),
        config_(config),
        rotations_(rotations.of(config.layer(layer))),
        rows_(rows) {}

  HeadProjection query(const HeadRange& heads) const { return of(biases_.query, biases_.query_norm, heads, rotations_.queries); }
  HeadProjection key(const HeadRange& heads) const { return of(biases_.key, biases_.key_norm, heads, rotations_.keys); }
  HeadProjection value(const HeadRange& heads) const { return of(biases_.value, {}, heads, {}); }

 private:
  HeadProjection of(const Bias& bias, const Bias& gain, const HeadRange& heads, const ConstTensor& rotations) const {
    const std::size_t d = config_.head_dim;
    return {compute_,
            bias.slice(heads.first * d, heads.count * d),
            {gain, config_.norm_epsilon, {.gain_from_one = config_.gains_from_one}},
            rotations,
            rotations_.pairs,
            rows_};
  }

  ComputeStream& compute_;
  BlockBiases biases_;
  const ModelConfig& config_;
  Rotations rotations_;
  std::span<const std::uint32_t> rows_;
};

}  // namespace tsprun::detail
