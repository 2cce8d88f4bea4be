// What turns the products x·W_Qᵀ, x·W_Kᵀ and x·W_Vᵀ into q, k and v, and back: the one place that says in which order bias, norm
// and rotation follow, for all strategies and for decoding. Products are the callers', who know where weights lie and when.
//
//   q = R(N(x·W_Qᵀ + b_Q)), k = R(N(x·W_Kᵀ + b_K)), v = M(x·W_Vᵀ + b_V); N normalises each head, or all heads of a
//   token together, R rotates by position, and M normalises each head without a gain, in layers that do so
//
// A layer without W_V takes v from the product of W_K: v = M(x·W_Kᵀ + b_K). That product's gradient is then the sum of both.
//
// Where several ranks have a token's heads, norms of all heads need two small sums over these ranks, of its squares, and backward
// of what its gradient has in its direction.
#pragma once

#include "layers/layout/heads.h"
#include "layers/layout/rotary_tables.h"
#include "layers/schedules/biases.h"
#include "layers/schedules/packs.h"
#include "layers/schedules/strategy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// The norm of q's, k's or v's heads: the gain of each head [d], or of all of the projection's heads. A gain without dims: no
/// norm, unless it is `bare`.
struct HeadNorm {
  Bias gain;
  bool bare = false;  ///< each head is normed without a gain
  double epsilon = 0;
  kernels::NormForm form = {};
  std::size_t row_width = 0;      ///< of QueryKeyNorm::rows: elements of all heads of the model; 0: each head is normed by itself
  Communicator* ranks = nullptr;  ///< that have these heads; null: this one has all of them
  std::size_t copies = 0;         ///< heads, from the first on, that an earlier rank counts

  bool exists() const { return bare || gain.exists(); }
};

/// Computes what follows the product of some heads' W_Q, W_K or W_V. Borrows all.
class HeadProjection {
 public:
  /// `rotations` [S, r] has a row for each token, or those that `rows` names; no dims: nothing is rotated.
  HeadProjection(Rank& rank, const Bias& bias, const HeadNorm& norm, const ConstTensor& rotations, kernels::RotaryPairs pairs,
                 std::span<const std::uint32_t> rows)
      : rank_(rank), compute_(rank.compute()), bias_(bias), norm_(norm), rotations_(rotations), pairs_(pairs), rows_(rows) {}

  /// Turns a product [B, S, heads, d] into q, k or v in `x`. The two may be the same tensor. If they aren't, there must be a
  /// norm, and `product` with its bias is left for finish_backward(). Where several ranks have the heads all of them call it.
  void finish(const Tensor& x, const Tensor& product) const {
    add_bias(product);
    turn(x, product);
  }
  /// The two parts of finish().
  void add_bias(const Tensor& product) const { bias_.add_to(compute_, matrix_of(product)); }
  void turn(const Tensor& x, const Tensor& product) const {
    if (norm_.exists()) norm(x, product);
    if (rotations_.dims() > 0 && !x.empty()) compute_.rope(x, rotations_, kernels::Rotation::forward, pairs_, rows_);
  }
  /// Turns the gradient `d` [B, S, heads, d] of q, k or v, in the type of sums, into that of the product, in place, and adds to
  /// the gradient of the norm's gain. `product` is needed where there is a norm.
  void finish_backward(const Tensor& d, const ConstTensor& product) const {
    if (rotations_.dims() > 0) compute_.rope(d, rotations_, kernels::Rotation::transposed, pairs_, rows_);
    if (norm_.exists()) norm_backward(d, product);
  }
  /// Adds to the gradient of the bias. `d` is what finish_backward() left.
  void add_gradients(const Tensor& d) const { bias_.add_gradient(compute_, matrix_of(d)); }

 private:
  void norm(const Tensor& x, const Tensor& product) const;
  void norm_backward(const Tensor& d, const ConstTensor& product) const;

  Rank& rank_;
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
  HeadProjections(Rank& rank, const ParameterStore& store, const ModelConfig& config, std::size_t layer,
                  const RotaryTables& rotations, const HeadOwners& owners, std::span<const std::uint32_t> rows = {})
      : rank_(rank),
        biases_(store, config, layer),
        config_(config),
        layer_(config.layer(layer)),
        rotations_(rotations.of(layer_)),
        owners_(owners),
        rows_(rows) {}

  HeadProjection query(const HeadRange& heads) const {
    return of(biases_.query, heads, norm(biases_.query_norm, heads, config_.query_width(layer_)), rotations_.queries);
  }
  HeadProjection key(const HeadRange& heads) const {
    HeadNorm of_keys = norm(biases_.key_norm, heads, config_.kv_width(layer_));
    if (of_keys.ranks != nullptr) {
      const BlockSlice slice = BlockSlice::of(config_, layer_, owners_.at);
      const std::size_t counted = slice.kv.first + slice.kv_copied;
      of_keys.copies = std::min(counted - std::min(counted, heads.first), heads.count);
    }
    return of(biases_.key, heads, of_keys, rotations_.keys);
  }
  HeadProjection value(const HeadRange& heads) const {
    return of(biases_.value, heads, {.gain = {}, .bare = layer_.norms_values, .epsilon = config_.norm_epsilon}, {});
  }

  /// Turns W_K's product into k, as HeadProjection::finish() does, and in a layer without W_V into v, too.
  void finish_keys(const HeadRange& heads, const Tensor& k, const Tensor& product, const Tensor& v) const;
  /// Turns the gradients of k and v, in the type of sums, into those of their products, in place. Products are needed where there
  /// are norms. In a layer without W_V `dk` becomes the gradient of W_K's product, and `dv` counts for nothing any more.
  void finish_backward(const HeadRange& heads, const Tensor& dk, const Tensor& dv, const ConstTensor& k_product,
                       const ConstTensor& v_product) const;

 private:
  HeadNorm norm(const Bias& gain, const HeadRange& heads, std::size_t width) const {
    HeadNorm norm{.gain = gain, .epsilon = config_.norm_epsilon, .form = {.gain_from_one = config_.gains_from_one}};
    if (layer_.query_key_norm != QueryKeyNorm::rows) return norm;
    const std::size_t d = config_.head_dim_of(layer_);
    norm.gain = gain.slice(heads.first * d, heads.count * d);
    norm.row_width = width;
    norm.ranks = owners_.ranks;
    return norm;
  }
  HeadProjection of(const Bias& bias, const HeadRange& heads, const HeadNorm& norm, const ConstTensor& rotations) const {
    const std::size_t d = config_.head_dim_of(layer_);
    return {rank_, bias.slice(heads.first * d, heads.count * d), norm, rotations, rotations_.pairs, rows_};
  }

  Rank& rank_;
  BlockBiases biases_;
  const ModelConfig& config_;
  const LayerSpec& layer_;
  Rotations rotations_;
  HeadOwners owners_;
  std::span<const std::uint32_t> rows_;
};

}  // namespace tsprun::detail
