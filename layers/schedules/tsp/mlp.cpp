// TSP MLP: forward is the paper's Algorithm 2; its backward pass is in docs/algorithms.md, "TSP gated MLP". Each is a loop over
// the shards that come round the ring, which move one step ahead (layers/schedules/look_ahead.h).
#include "layers/schedules/tsp/mlp.h"

#include "layers/schedules/look_ahead.h"
#include "layers/schedules/packs.h"

#include <utility>

namespace tsprun::detail {

using kernels::Write;

// --- forward: the paper's Algorithm 2 ------------------------------------------------------------------------------------------

void TspMlp::begin_forward(std::size_t layer) {
  begun_.emplace(weights(layer));
  if (steps() == 1) return;  // nobody else waits for the own shard
  own_packs_.arrive(mlp_pack_number(layer));
  begun_->fetch(1);
}

void TspMlp::forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved,
                     const std::function<void()>& last_step) {
  ComputeStream& compute = axis_.compute();
  const Tensor Y = y.merged(0);
  const ConstTensor X = x.merged(0);
  RingShards ring = std::move(*begun_);
  begun_.reset();
  own_packs_.arrive(mlp_pack_number(layer));

  // Lines 8 to 11: sends the shard of step t − 1 on to rank p + 1, and receives that of step t from rank p − 1.
  const auto travel = [&](std::size_t t) { ring.fetch(t); };

  // Y += (σ(X·W_1ᵀ) ∘ (X·W_3ᵀ))·W_2ᵀ with the shard of rank (p − t) mod D.
  const auto apply = [&](std::size_t t) {
    const MlpMatrices W(ring.at(t), axis_.config);  // lines 15 to 18: waits for it
    if (t + 1 == steps()) last_step();
    const MlpColumns shard = columns(layer, X, owner(t), saved);
    shard.project(X, W, bias(layer, owner(t)));  // lines 12 and 13
    const OwnedTensor a = shard.activation();
    compute.gemm("W_2", Y, a, W.W2t, t == 0 ? Write::replace : Write::add);  // line 14
  };

  look_ahead(steps(), {{1, travel}, {0, apply}});  // lines 7 and 19
}

// --- backward ------------------------------------------------------------------------------------------------------------------

void TspMlp::backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved, const Moments& moments) {
  const Tensor dX = of.dx.merged(0);
  const ConstTensor dY = of.dy.merged(0);
  const ConstTensor X = of.x.merged(0);
  const std::size_t pack = mlp_pack_number(layer);
  RingShards ring = weights(layer);
  own_packs_.arrive(pack);
  // Memory for the gradient of a pack that is cut is made as late as can be: what data ranks sum before must have arrived then.
  const bool late = own_packs_.is_cut(pack);
  if (!late) begin_sums(layer);

  const auto travel = [&](std::size_t t) { ring.fetch(t); };

  // dX and this rank's part of dW of one shard. dW is computed last, so that the sum so far, which travels behind the shard,
  // arrives while the other products are computed.
  const auto apply = [&](std::size_t t) {
    const MlpMatrices W(ring.at(t), axis_.config);
    if (t + 1 == steps()) moments.last_step();
    const MlpColumns shard = columns(layer, X, owner(t), saved);
    const Bias b1 = bias(layer, owner(t));
    if (!saved.gate.exists()) shard.project(X, W, b1);
    MlpColumns::Gradients d = shard.backward(dY, W);
    shard.input_gradient(dX, d, W, t == 0 ? Write::replace : Write::add);
    if (late && t == 0) begin_sums(layer);
    shard.weight_gradients(MlpMatrices(sums_.part(t), axis_.config), b1, std::move(d), X, dY);
    sums_.pass_on(t);
    if (t == 0) moments.first_step_done();
  };

  look_ahead(steps(), {{1, travel}, {0, apply}});
}

void TspMlp::begin_sums(std::size_t layer) {
  own_ = own_packs_.gradient(mlp_pack_number(layer), Category::communication, "MLP gradient shard");
  sums_ = {axis_.rank,
           axis_.group,
           own_.rows(),
           [this, layer](int r) { return shard_rows(layer, r); },
           CallOptions{.stream = Stream::gradients, .purpose = Purpose::gradients},
           "MLP gradient shard"};
}

// --- one shard -----------------------------------------------------------------------------------------------------------------

RingShards TspMlp::weights(std::size_t layer) const {
  return {axis_.rank,
          axis_.group,
          own_packs_.values(mlp_pack_number(layer)),
          [this, layer](int r) { return shard_rows(layer, r); },
          CallOptions{.stream = Stream::weights, .purpose = Purpose::weights},
          "MLP weight shard"};
}

/// Returns the columns of one shard.
MlpColumns TspMlp::columns(std::size_t layer, const ConstTensor& X, int shard, const MlpSaved& saved) const {
  const Chunks& rows = axis_.of(layer).mlp_rows;
  return {axis_.rank, axis_.config, axis_.dtype, X.size(0), rows.offset(shard), rows.count(shard), saved};
}

Bias TspMlp::bias(std::size_t layer, int shard) const {
  const TspCut& cut = axis_.of(layer);
  return BlockBiases(of_.store, axis_.config, layer)
      .mlp.slice(cut.slice.first_row + cut.mlp_rows.offset(shard), cut.mlp_rows.count(shard));
}

}  // namespace tsprun::detail
