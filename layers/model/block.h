// One transformer block around a strategy's sublayers: norms, the last biases of the sublayers, dropout and residuals, forward
// and backward, and what is kept in between.
//
//   x2 = x1 + m·drop(n'(attention(n(x1)) + b_O));  x3 = x2 + m·drop(n'(mlp(n(x2)) + b_2));  x4 = s·(x3 + i(x3))
//
// m is the residual multiplier, s a number of the layer's own, or 1; i is what a layer makes of an input of its own
// (layer_inputs.h), or nothing. Of the norms n and n', each with parameters of its own, a layer may have either or both. Where
// sublayers are side by side, both take n(x1).
#pragma once

#include "core/rank/rank.h"
#include "layers/io/config.h"
#include "layers/layout/setting.h"
#include "layers/model/dropout.h"
#include "layers/model/layer_inputs.h"
#include "layers/parameters/norm.h"
#include "layers/schedules/biases.h"
#include "layers/schedules/strategy.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail {

/// Tensors that a block keeps of its forward pass; the recomputation mode decides which exist.
struct BlockSaved {
  OwnedTensor x1;  ///< the attention's input before its norm, a residual (token_layout.h)
  OwnedTensor x2;  ///< the MLP's input before its norm
  OwnedTensor x3;  ///< only in layers with an input of their own: the residual to which that adds
  AttentionSaved attention;
  MlpSaved mlp;
  // Only in layers with norms behind their sublayers: what went into these.
  OwnedTensor attention_result;
  OwnedTensor mlp_result;
};

/// Says in a layer's room where it finds k and v, if it takes another layer's. `blocks`: of all layers, or empty if no layer does
/// so.
inline void take_lender(const ModelConfig& config, std::span<BlockSaved> blocks, std::size_t layer) {
  if (!blocks.empty() && !config.layer(layer).projects_keys())
    blocks[layer].attention.lender = &blocks[config.lender_of(layer)].attention;
}
/// Drops k and v that no layer behind this one takes, in a pass that keeps nothing else.
inline void drop_lent(const ModelConfig& config, std::span<BlockSaved> blocks, std::size_t layer) {
  if (blocks.empty()) return;
  const std::size_t lender = config.lender_of(layer);
  if (config.last_borrower_of(lender) == layer) blocks[lender] = {};
}

/// Norm parameters and last biases of a block, which every rank has, and the tensors to which their gradients are added.
struct BlockVectors {
  NormWeights attention;  ///< before the sublayer, as the layer has it
  NormWeights mlp;
  NormWeights post_attention = {};  ///< behind the sublayer
  NormWeights post_mlp = {};
  Bias attention_output = {};    ///< b_O [h]; no dims without biases
  Bias mlp_output = {};          ///< b_2 [h]; no dims without biases
  LayerInputWeights input = {};  ///< in layers with an input of their own
  double output_scale = 1;       ///< s, in layers that scale their output
};

/// Tensors that a forward pass keeps.
enum class Keep : std::uint8_t {
  nothing,
  kv,       ///< K and V of the tokens, for a cache
  backward  ///< those that the recomputation mode keeps for the backward pass
};

/// Arguments of blocks that are the same in a whole pass; all borrowed.
struct BlockPass {
  StrategyPass& sublayers;
  const TokenLayout& tokens;
  const DropoutDraws* draws = nullptr;  ///< null: nothing is dropped
  LayerInputs* inputs = nullptr;        ///< of the layers; null: they have none
};

/// Computes all blocks of a model in all passes, one call after another; keeps nothing of a pass. `rank` and `strategy` are
/// borrowed.
class Block {
 public:
  Block(Rank& rank, const Strategy& strategy, const ModelConfig& config, DType dtype, Recompute recompute)
      : rank_(rank), strategy_(strategy), config_(config), dtype_(dtype), recompute_(recompute) {}

  /// Computes x4 from x1 = `x`, a residual of the pass's tokens, and puts what is kept into `saved`.
  OwnedTensor forward(const BlockPass& pass, std::size_t layer, OwnedTensor x, const BlockVectors& vectors, Keep keep,
                      BlockSaved& saved) const;
  /// Turns `d`, a residual in the type of sums, from dL/dx4 into dL/dx1. Adds to the gradients in `vectors`; the strategy writes
  /// those of the weights to the store. Clears `saved`.
  void backward(const BlockPass& pass, std::size_t layer, const Tensor& d, const BlockVectors& vectors, BlockSaved& saved) const;

  /// Returns how error messages name a sublayer of a pass: "layer 1, attention, forward".
  static std::string stage(std::size_t layer, std::string_view sublayer, std::string_view direction);

 private:
  bool drops(const BlockPass& pass) const { return pass.draws != nullptr && config_.residual_dropout > 0; }
  void drop_attention(const BlockPass& pass, std::size_t layer) const;
  void dropout(const BlockPass& pass, const Tensor& y, const ConstTensor& x, std::size_t layer, DropoutSite site) const;
  /// A sublayer of a layer, and what stands around it.
  struct Around {
    std::size_t layer;
    DropoutSite site;
    const NormWeights& before;
    const NormWeights& behind;
    const Bias& bias;
  };
  static Around around_attention(std::size_t layer, const BlockVectors& vectors);
  Around around_mlp(std::size_t layer, const BlockVectors& vectors) const;
  /// Input of a sublayer: the residual behind the norm that stands before it, or as it is.
  struct Input {
    OwnedTensor memory;
    ConstTensor x;
  };
  Input input(const Tensor& x, const NormWeights& norm) const;
  OwnedTensor room_for_result(const Tensor& x, const Around& of, Keep keep, std::string_view what) const;
  void end_sublayer(const BlockPass& pass, OwnedTensor& y, const Around& of, Keep keep, OwnedTensor& kept) const;
  void norm_result(OwnedTensor& y, const NormWeights& norm, Keep keep, OwnedTensor& kept) const;
  ConstTensor result_gradient(const BlockPass& pass, const Tensor& d, const Around& of, OwnedTensor& kept,
                              OwnedTensor& memory) const;
  void add_input_gradient(const Tensor& d, const Tensor& dx, const Tensor& x, const NormWeights& norm) const;
  OwnedTensor like(const Tensor& x, DType dtype, Category category, std::string_view what) const;
  OwnedTensor normed(const Tensor& x, const NormWeights& norm) const;
  OwnedTensor residual(const Tensor& x, const Tensor& y, Category category, std::string_view what) const;
  void make_room(const TokenLayout& tokens, std::size_t layer, Keep keep, BlockSaved& saved) const;

  Rank& rank_;
  const Strategy& strategy_;
  ModelConfig config_;
  DType dtype_;
  Recompute recompute_;
};

}  // namespace tsprun::detail
