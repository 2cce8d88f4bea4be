// One transformer block around a strategy's sublayers: norms, the sublayers' last biases, dropout and residuals, forward and
// backward, and what is kept in between.
//
//   x2 = x1 + drop(attention(norm(x1)) + b_O);  x3 = x2 + drop(mlp(norm(x2)) + b_2)
#pragma once

#include "core/rank/rank.h"
#include "layers/biases.h"
#include "layers/model/config.h"
#include "layers/model/dropout.h"
#include "layers/model/norm.h"
#include "layers/model/strategy.h"
#include "layers/theory/setting.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun {

/// What a block keeps of its forward pass; which tensors exist follows from the recomputation mode.
struct BlockSaved {
  OwnedTensor x1;  ///< the attention's input before its norm, a residual (token_layout.h)
  OwnedTensor x2;  ///< the MLP's
  AttentionSaved attention;
  MlpSaved mlp;
};

/// A block's vectors, which every rank has; and where their gradients are added up.
struct BlockVectors {
  NormWeights attention;
  NormWeights mlp;
  Bias attention_output = {};  ///< b_O [h]; none without biases
  Bias mlp_output = {};        ///< b_2 [h]
};

/// What a forward pass keeps.
enum class Keep : std::uint8_t {
  nothing,
  kv,       ///< K and V of the tokens: for a cache
  backward  ///< what the recomputation mode keeps
};

class Block {
 public:
  Block(Rank& rank, Strategy& strategy, const ModelConfig& config, DType dtype, Recompute recompute)
      : rank_(rank), strategy_(strategy), config_(config), dtype_(dtype), recompute_(recompute) {}

  /// Dropout of the passes that follow, forward and backward; null: none. Borrowed.
  void drop(const DropoutDraws* draws) { draws_ = draws; }
  /// x3 from x1 = `x`, a residual of `tokens`; what is kept goes to `saved`.
  OwnedTensor forward(std::size_t layer, OwnedTensor x, const TokenLayout& tokens, const BlockVectors& vectors, Keep keep,
                      BlockSaved& saved);
  /// `d`, a residual of the type of sums: dL/dx3 becomes dL/dx1. Vectors' gradients are added to.
  void backward(std::size_t layer, const Tensor& d, const BlockVectors& vectors, BlockSaved& saved);

  /// How a sublayer of a pass is named where it fails: "layer 1, attention, forward".
  static std::string stage(std::size_t layer, std::string_view sublayer, std::string_view direction);

 private:
  bool drops() const { return draws_ != nullptr && config_.residual_dropout > 0; }
  void drop_attention(std::size_t layer);
  void dropout(const Tensor& y, const ConstTensor& x, std::size_t layer, DropoutSite site);
  void end_sublayer(const Tensor& y, const Bias& bias, std::size_t layer, DropoutSite site);
  ConstTensor result_gradient(const Tensor& d, const Bias& bias, std::size_t layer, DropoutSite site, OwnedTensor& memory);
  OwnedTensor like(const Tensor& x, DType dtype, Category category, std::string_view what);
  OwnedTensor normed(const Tensor& x, const NormWeights& norm);
  OwnedTensor residual(const Tensor& x, const Tensor& y, Category category, std::string_view what);
  void make_room(const TokenLayout& tokens, Keep keep, BlockSaved& saved);

  Rank& rank_;
  Strategy& strategy_;
  ModelConfig config_;
  DType dtype_;
  Recompute recompute_;
  const DropoutDraws* draws_ = nullptr;
};

}  // namespace tsprun
