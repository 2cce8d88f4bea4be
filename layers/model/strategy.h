// A way to compute a block's two sublayers on the ranks of an axis. The model (model.h) does everything else: norms, residuals,
// embedding, head, loss, optimizer.
//
// Shapes: x, dx, y, dy are residuals [B, S_p, h] (token_layout.h). x is the normed input, in the model's dtype; y, dx and dy are
// in the type of sums. A sublayer writes all of y, of dx, and the gradients of its pack in the store.
#pragma once

#include "layers/model/parameter_store.h"
#include "layers/model/token_layout.h"

#include <array>
#include <cstddef>
#include <functional>
#include <utility>

namespace tsprun {

/// What attention keeps for its backward pass. A tensor that doesn't exist isn't kept, and is made again. A strategy may keep
/// other sizes (saved_sizes()).
struct AttentionSaved {
  OwnedTensor q;    ///< [B, S_p, n_h, d], after RoPE if there is any
  OwnedTensor k;    ///< [B, S_p, n_kv, d], the same
  OwnedTensor v;    ///< [B, S_p, n_kv, d]
  OwnedTensor o;    ///< [B, S_p, n_h, d], before W_O
  OwnedTensor lse;  ///< [B, n_h, S_p], of the type of sums
};

/// What the MLP keeps: pre-activations.
struct MlpSaved {
  OwnedTensor gate;  ///< [B, S_p, f]; without a gate the only ones
  OwnedTensor up;    ///< [B, S_p, f]
};

/// Sizes of what a rank saves of a block.
struct SavedSizes {
  std::array<std::size_t, 4> q;
  std::array<std::size_t, 4> kv;
  std::array<std::size_t, 4> o;
  std::array<std::size_t, 3> lse;
  std::array<std::size_t, 3> gate;  ///< and up

  /// Of the rank's tokens, with so many heads and rows of the MLP: as AttentionSaved and MlpSaved say.
  static SavedSizes of(const TokenLayout& tokens, std::size_t query_heads, std::size_t kv_heads, std::size_t intermediate);
};

class Strategy {
 public:
  /// Whom a strategy tells how far its backward pass is; all ranks tell in the same order. What isn't told has happened when the
  /// sublayer's call returns (input_gradient), or end() (gradients).
  struct Notices {
    /// The sublayer's dx is complete; its weights' gradients are computed next.
    std::function<void()> input_gradient;
    /// All that a pack's gradients need is done, or posted on Stream::gradients.
    std::function<void(std::size_t pack)> gradients;
  };

  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  /// This rank's part of a layer's W_Q, W_K, W_V, W_O and of its W_1 (gate), W_3 (up), W_2 (down). Biases of Q, K, V and W_1,
  /// where the model has them, are whole on every rank (layers/biases.h): sublayers add to their gradients in the store. Their
  /// last biases are none of a strategy's business.
  virtual PackPlan attention_pack(std::size_t layer) const = 0;
  virtual PackPlan mlp_pack(std::size_t layer) const = 0;
  /// What is saved for the backward pass has these sizes. Unless a strategy says otherwise: all heads and rows of the MLP.
  virtual SavedSizes saved_sizes(const ModelConfig& config, const TokenLayout& tokens) const {
    return SavedSizes::of(tokens, config.query_heads, config.kv_heads, config.intermediate);
  }
  /// Dropout of attention probabilities in the calls that follow, forward and backward; `of` is good for whatever heads and
  /// tokens by AttentionDropout::of(). Its probability is 0 until something else is said.
  virtual void drop_attention(const kernels::AttentionDropout& of) = 0;
  void notify(Notices notices) { notices_ = std::move(notices); }

  /// A pass begins: `tokens` and `store` stay until the next. Weights may begin to move.
  virtual void begin_forward(const ParameterStore& store, const TokenLayout& tokens) = 0;
  virtual void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) = 0;
  virtual void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) = 0;

  virtual void begin_backward() = 0;
  /// The backward pass of a block begins; `attention` is what its attention kept. Its messages may begin to move under the MLP.
  virtual void begin_block_backward(std::size_t /*layer*/, const AttentionSaved& /*attention*/) {}
  virtual void mlp_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                            const MlpSaved& saved) = 0;
  virtual void attention_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                                  const AttentionSaved& saved) = 0;
  /// Returns when all that the pass began is complete: gradients are in the store, nobody reads its weights.
  virtual void end() = 0;

 protected:
  void tell_input_gradient() const {
    if (notices_.input_gradient) notices_.input_gradient();
  }
  void tell_gradients(std::size_t pack) const {
    if (notices_.gradients) notices_.gradients(pack);
  }

 private:
  Notices notices_;
};

}  // namespace tsprun
