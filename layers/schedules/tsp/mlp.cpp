#include "layers/schedules/tsp/mlp.h"

#include "layers/schedules/packs.h"

#include <utility>

namespace tsprun::detail {

using kernels::Write;

PackPlan TspMlp::pack(std::size_t layer) const {
  return mlp_pack_plan(axis_.whole, layer, axis_.slice.first_row + axis_.mlp_rows.offset(axis_.p()),
                       axis_.mlp_rows.count(axis_.p()));
}

RingWeights TspMlp::weights(std::size_t layer) {
  return {axis_.rank,
          axis_.group,
          axis_.store->values(mlp_pack_number(layer)),
          [this](int r) { return shard_rows(r); },
          CallOptions{.stream = Stream::weights, .purpose = Purpose::weights},
          "MLP weight shard"};
}

/// Returns the columns of one shard.
MlpColumns TspMlp::columns(const ConstTensor& X, int shard, const MlpSaved& saved) const {
  return {axis_.rank, axis_.config, axis_.dtype, X.size(0), axis_.mlp_rows.offset(shard), axis_.mlp_rows.count(shard), saved};
}

Bias TspMlp::bias(std::size_t layer, int shard) const {
  return BlockBiases(*axis_.store, axis_.whole, layer)
      .mlp.slice(axis_.slice.first_row + axis_.mlp_rows.offset(shard), axis_.mlp_rows.count(shard));
}

void TspMlp::begin_forward(std::size_t layer) {
  ring_.emplace(weights(layer));
  ring_->begin_hop();
}

void TspMlp::forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved,
                     const std::function<void()>& last_step) {
  ComputeStream& compute = axis_.compute();
  const Tensor Y = y.merged(0);
  const ConstTensor X = x.merged(0);
  for (int t = 0; t < axis_.D(); ++t) {
    if (t > 0) ring_->begin_hop();
    if (ring_->last()) last_step();
    const MlpMatrices W(ring_->rows(), axis_.config);
    const MlpColumns shard = columns(X, ring_->shard(), saved);
    shard.project(X, W, bias(layer, ring_->shard()));
    const OwnedTensor a = shard.activation();
    compute.gemm(Y, a, W.W2t, t == 0 ? Write::replace : Write::add);
    ring_->finish_hop();
  }
  ring_.reset();
}

void TspMlp::backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, const MlpSaved& saved,
                      const Moments& moments) {
  const Tensor dX = dx.merged(0);
  const ConstTensor dY = dy.merged(0);
  const ConstTensor X = x.merged(0);
  RingWeights ring = weights(layer);
  sums_ = {axis_.rank,
           axis_.group,
           axis_.store->gradients(mlp_pack_number(layer)),
           [this](int r) { return shard_rows(r); },
           CallOptions{.stream = Stream::gradients, .purpose = Purpose::gradients},
           "MLP gradient shard"};
  for (int t = 0; t < axis_.D(); ++t) {
    ring.begin_hop();
    if (ring.last()) moments.last_step();
    const MlpMatrices W(ring.rows(), axis_.config);
    const MlpColumns shard = columns(X, ring.shard(), saved);
    const Bias b1 = bias(layer, ring.shard());
    if (!saved.gate.exists()) shard.project(X, W, b1);
    MlpColumns::Gradients d = shard.backward(dY, W);
    shard.input_gradient(dX, d, W, t == 0 ? Write::replace : Write::add);
    // Computed last, so that the sum arrives while the products above are computed.
    shard.weight_gradients(MlpMatrices(sums_.part(t), axis_.config), b1, std::move(d), X, dY);
    sums_.pass_on(t);
    if (t == 0) moments.first_step_done();
    ring.finish_hop();
  }
}

}  // namespace tsprun::detail
