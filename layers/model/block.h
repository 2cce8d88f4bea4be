// One transformer block around a strategy's sublayers: norms and residuals, forward and backward, and what is kept in between.
//
//   x2 = x1 + attention(norm(x1));  x3 = x2 + mlp(norm(x2))
#pragma once

#include "core/rank/rank.h"
#include "layers/model/config.h"
#include "layers/model/strategy.h"
#include "layers/theory/setting.h"

#include <cstddef>
#include <cstdint>

namespace tsp {

/// What a block keeps of its forward pass; which tensors exist follows from the recomputation mode.
struct BlockSaved {
  OwnedTensor x1;  ///< the attention's input before its norm, a residual (token_layout.h)
  OwnedTensor x2;  ///< the MLP's
  AttentionSaved attention;
  MlpSaved mlp;
};

/// Gains [1, h] of a block's norms, and where their gradients are added up (no dims without training).
struct BlockGains {
  Tensor attention;
  Tensor mlp;
  Tensor attention_gradient;
  Tensor mlp_gradient;
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

  /// x3 from x1 = `x`, a residual of `tokens`; what is kept goes to `saved`.
  OwnedTensor forward(std::size_t layer, OwnedTensor x, const TokenLayout& tokens, const BlockGains& gains, Keep keep,
                      BlockSaved& saved);
  /// `d`, a residual of the type of sums: dL/dx3 becomes dL/dx1. Gains' gradients are added to.
  void backward(std::size_t layer, const Tensor& d, const BlockGains& gains, BlockSaved& saved);

 private:
  OwnedTensor like(const Tensor& x, DType dtype, Category category, std::string_view what);
  OwnedTensor normed(const Tensor& x, const Tensor& gain);
  OwnedTensor residual(const Tensor& x, const Tensor& y, Category category, std::string_view what);
  void make_room(const TokenLayout& tokens, Keep keep, BlockSaved& saved);

  Rank& rank_;
  Strategy& strategy_;
  ModelConfig config_;
  DType dtype_;
  Recompute recompute_;
};

}  // namespace tsp
