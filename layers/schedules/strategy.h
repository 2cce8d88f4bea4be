// The interface of a parallel strategy: computes the two sublayers of a transformer block, attention and MLP, on the ranks of an
// axis, forward and backward. The model (model.h) does everything else: norms, residuals, embedding, head, loss, optimizer.
//
// Shapes: x, dx, y and dy are residuals [B, S_p, h] of this rank's tokens (token_layout.h). x is the normed input of a sublayer,
// in the model's dtype; y, dx and dy are in the type of sums (f32; f64 in f64 runs). A sublayer overwrites all of y or dx, and in
// the backward pass the gradients of its pack in the store, to which those of later micro-batches are added (micro_batch.h).
#pragma once

#include "layers/layout/packed_documents.h"
#include "layers/layout/slice.h"
#include "layers/layout/token_layout.h"
#include "layers/parameters/parameter_store.h"
#include "layers/schedules/log_sum_exps.h"
#include "layers/schedules/micro_batch.h"
#include "layers/schedules/own_packs.h"
#include "layers/schedules/tasks.h"

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace tsprun::detail {

/// Tensors of an attention sublayer that its backward pass uses. A tensor that doesn't exist wasn't kept and is computed again. A
/// strategy may keep other shapes than these: see Strategy::saved_sizes().
struct AttentionSaved {
  OwnedTensor q;   ///< [B, S_p, n_h, d], after RoPE if the model has rotary positions
  OwnedTensor k;   ///< [B, S_p, n_kv, d], after RoPE if the model has rotary positions
  OwnedTensor v;   ///< [B, S_p, n_kv, d]
  OwnedTensor o;   ///< [B, S_p, n_h, d], attention output before W_O
  LogSumExps lse;  ///< [B, n_h, S_p], log-sum-exp, in the type of sums
  /// Room of the layer whose k and v this one takes; null: it has its own. Borrowed.
  AttentionSaved* lender = nullptr;
  /// Sums of the gradients of k and v that layers behind this one have found, which take them, [B, S_p, n_kv, d] of this rank's
  /// tokens (under SP Ulysses as k and v are kept), in the type of sums; none before the first of these backward passes.
  std::array<OwnedTensor, 2> lent = {};

  const OwnedTensor& keys() const { return lender == nullptr ? k : lender->k; }
  const OwnedTensor& values() const { return lender == nullptr ? v : lender->v; }
  // Only where q and k are normed: what went into the norms, of this rank's tokens.
  OwnedTensor query_product;  ///< [B, S_p, n_h, d]
  OwnedTensor key_product;    ///< [B, S_p, n_kv, d]
  OwnedTensor value_product;  ///< the same of v, only where it is normed and isn't W_K's product
};

/// Pre-activations of an MLP sublayer that its backward pass uses; computed again if they don't exist.
struct MlpSaved {
  OwnedTensor gate;  ///< [B, S_p, f]; the only pre-activation of an MLP without a gate
  OwnedTensor up;    ///< [B, S_p, f]
};

/// Shapes of the tensors of AttentionSaved and MlpSaved on this rank.
struct SavedSizes {
  std::array<std::size_t, 4> q;
  std::array<std::size_t, 4> kv;
  std::array<std::size_t, 4> o;
  std::array<std::size_t, 3> lse;
  std::array<std::size_t, 4> query_product;
  std::array<std::size_t, 4> key_product;  ///< and of value_product
  std::array<std::size_t, 3> gate;         ///< shape of MlpSaved::gate and MlpSaved::up

  /// Returns the shapes that AttentionSaved and MlpSaved document, for this rank's tokens, `query_heads` and `kv_heads` heads of
  /// `head_dim` dims, and `intermediate` rows of the MLP.
  static SavedSizes of(const TokenLayout& tokens, std::size_t query_heads, std::size_t kv_heads, std::size_t head_dim,
                       std::size_t intermediate);
};

/// Tensors of a sublayer's backward pass.
struct SublayerBackward {
  Tensor dx;       ///< overwritten
  ConstTensor dy;  ///< gradient of the sublayer's result
  ConstTensor x;   ///< the same as in the forward pass
  /// Callback when dx is complete before all gradients of the weights are computed. A strategy whose dx isn't complete earlier
  /// need not call it: dx is complete when the sublayer's call returns.
  std::function<void()> dx_complete = {};

  void tell_dx_complete() const {
    if (dx_complete) dx_complete();
  }
};

/// Model, dtype and choices of a strategy. `kv_bucket_heads`: K/V heads gathered at a time; 0: the strategy chooses.
struct StrategyOptions {
  ModelConfig config;
  DType dtype = DType::f32;
  std::size_t kv_bucket_heads = 0;
};

/// The ranks among which the heads of each token are divided, for norms over all heads. Borrowed.
struct HeadOwners {
  Communicator* ranks = nullptr;  ///< null: this rank has all heads of its tokens
  SlicePlace at = {};             ///< this rank's; K/V heads that an earlier one has, too, are copies, which that one counts
};

/// Arguments of a pass; all borrowed until the pass is destroyed.
struct PassInputs {
  const ParameterStore& store;
  const TokenLayout& tokens;
  Visits& visits;  ///< the pass comes next in it; the strategy looks ahead in it, and goes on in it with each sublayer
  MicroBatch micro_batch = {};        ///< which of the step's micro-batches the tokens are
  BeforeScatter before_scatter = {};  ///< empty: nothing else is summed
  DocumentViews documents = {};       ///< of the tokens' sequences
  HeadOwners heads = {};              ///< of the tokens
};

/// One pass through the blocks, of one micro-batch, and everything that its strategy keeps for it between calls: no strategy has
/// state of a pass in itself, so several passes may be under way at once. The calls of one training pass, in order:
/// attention_forward() and mlp_forward() for each layer; begin_backward(); begin_block_backward(), mlp_backward() and
/// attention_backward() for each layer, the last layer first; end(). A pass without gradients goes from the forward calls
/// straight to end(). Calls of other passes may come between the forward and the backward calls, in the order of the list of
/// visits, but the backward calls of micro-batch m come after end() of micro-batch m − 1, so that gradients are added in order.
/// All ranks of the mesh make the same calls. Whoever began a pass owns it, and destroys it after end(), or when an error has
/// ended the step.
class StrategyPass {
 public:
  explicit StrategyPass(const PassInputs& of) : of_(of) {}
  StrategyPass(const StrategyPass&) = delete;
  StrategyPass& operator=(const StrategyPass&) = delete;
  virtual ~StrategyPass() = default;

  /// Sets the dropout of attention probabilities for the following calls, forward and backward. Strategies derive the draws for
  /// their own heads and tokens with AttentionDropout::of(). Until the first call the probability is 0.
  virtual void drop_attention(const kernels::AttentionDropout& of) = 0;
  /// Sets the function that is called in the backward pass, if it is of a step's last micro-batch, when everything that a pack's
  /// gradients need is done or posted on Stream::gradients, with the pack's number, in the same order on all ranks. Gradients of
  /// packs for which it isn't called, and of packs that are cut over data ranks (own_packs.h), are complete when end() returns.
  void on_gradients(std::function<void(std::size_t pack)> call) { on_gradients_ = std::move(call); }

  /// Computes y = attention(x)·W_O without b_O, and fills those tensors of `saved` that exist.
  virtual void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) = 0;
  /// Computes y = MLP(x) without b_2, and fills those tensors of `saved` that exist.
  virtual void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) = 0;

  /// Begins the backward pass, which comes next in the list of visits. The strategy may begin to move weights.
  virtual void begin_backward() {}
  /// Announces the backward pass of a block; `attention` is what its attention saved. The strategy may begin to move it while the
  /// MLP's backward pass is computed.
  virtual void begin_block_backward(std::size_t /*layer*/, const AttentionSaved& /*attention*/) {}
  /// Computes dx and the gradients of the sublayer's pack from dy, x and what was saved.
  virtual void mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) = 0;
  virtual void attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) = 0;
  /// Ends the pass: returns when every message that it began is complete, so that all gradients are in the store and no other
  /// rank reads this rank's weights.
  virtual void end() = 0;

 protected:
  const ParameterStore& store() const { return of_.store; }
  const TokenLayout& tokens() const { return of_.tokens; }
  const DocumentViews& documents() const { return of_.documents; }
  const HeadOwners& head_owners() const { return of_.heads; }
  Visits& visits() const { return of_.visits; }
  const MicroBatch& micro_batch() const { return of_.micro_batch; }
  /// Goes on in the list of visits to this one.
  const Visit& arrive(bool backward, std::size_t layer, Sublayer sublayer) const {
    return of_.visits.arrive({.micro_batch = of_.micro_batch.number, .backward = backward, .layer = layer, .sublayer = sublayer});
  }
  /// Tells that a pack's gradients are complete, unless those of further micro-batches are added to them.
  void tell_gradients(std::size_t pack) const {
    if (on_gradients_ && of_.micro_batch.last()) on_gradients_(pack);
  }

 private:
  const PassInputs of_;
  std::function<void(std::size_t)> on_gradients_;
};

/// A way of computing the sublayers of all blocks, on ranks that hold what layers/parameters/place.h says. Biases of Q, K, V and
/// W_1, where the model has them, are whole on every rank (layers/schedules/biases.h), and sublayers add to their gradients in
/// the store. The last biases, b_O and b_2, are added by Block; strategies ignore them.
class Strategy {
 public:
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  /// Returns the shapes of what is saved of a layer for the backward pass.
  virtual SavedSizes saved_sizes(std::size_t layer, const TokenLayout& tokens) const = 0;
  /// Begins a pass, which borrows the strategy, too. It may begin to move weights.
  virtual std::unique_ptr<StrategyPass> begin(const PassInputs& of) const = 0;
};

}  // namespace tsprun::detail
