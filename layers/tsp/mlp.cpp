#include "layers/tsp/mlp.h"

#include "layers/packs.h"

namespace tsp {

using kernels::Write;

/// Gate and up pre-activations of one shard's columns, [B·S_p, f_r]: what is saved, or memory of this step.
struct TspMlp::Activations {
  OwnedTensor gate_memory;
  OwnedTensor up_memory;
  Tensor gate;
  Tensor up;
};

PackPlan TspMlp::pack(std::size_t layer) const {
  return mlp_pack_plan(axis_.whole, layer, axis_.slice.first_row + axis_.mlp_rows.offset(axis_.p()),
                       axis_.mlp_rows.count(axis_.p()));
}

RingWeights TspMlp::weights(std::size_t layer) {
  return {axis_.rank,
          axis_.group,
          axis_.store->values(mlp_pack_number(layer), 0, 3),
          [this](int r) { return 3 * axis_.mlp_rows.count(r); },
          CallOptions{.stream = Stream::weights, .purpose = Purpose::weights},
          "MLP weight shard"};
}

TspMlp::Activations TspMlp::activations(const ConstTensor& X, int shard, const MlpSaved& saved) const {
  const std::size_t first = axis_.mlp_rows.offset(shard);
  const std::size_t f = axis_.mlp_rows.count(shard);
  Activations of;
  if (saved.gate.exists()) {
    of.gate = saved.gate->merged(0).slice(1, first, f);
    of.up = saved.up->merged(0).slice(1, first, f);
  } else {
    of.gate_memory = axis_.step(axis_.dtype, {X.size(0), f}, "gate");
    of.up_memory = axis_.step(axis_.dtype, {X.size(0), f}, "up");
    of.gate = of.gate_memory;
    of.up = of.up_memory;
  }
  return of;
}

void TspMlp::forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved,
                     const std::function<void()>& last_step) {
  ComputeStream& compute = axis_.compute();
  const Tensor Y = y.merged(0);
  const ConstTensor X = x.merged(0);
  RingWeights ring = weights(layer);
  for (int t = 0; t < axis_.D(); ++t) {
    ring.begin_hop();
    if (ring.last()) last_step();
    const MlpMatrices W(ring.rows());
    const Activations of = activations(X, ring.shard(), saved);
    compute.gemm(of.gate, X, W.W1.transposed(0, 1));
    compute.gemm(of.up, X, W.W3.transposed(0, 1));
    const OwnedTensor a = axis_.step(axis_.dtype, {X.size(0), W.W1.size(0)}, "gated activation");
    compute.swiglu(a, of.gate, of.up);
    compute.gemm(Y, a, W.W2t, t == 0 ? Write::replace : Write::add);
    ring.finish_hop();
  }
}

void TspMlp::backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, const MlpSaved& saved,
                      const Moments& moments) {
  ComputeStream& compute = axis_.compute();
  const Tensor dX = dx.merged(0);
  const ConstTensor dY = dy.merged(0);
  const ConstTensor X = x.merged(0);
  RingWeights ring = weights(layer);
  sums_ = {axis_.rank,
           axis_.group,
           axis_.store->gradients(mlp_pack_number(layer), 0, 3),
           [this](int r) { return 3 * axis_.mlp_rows.count(r); },
           CallOptions{.stream = Stream::gradients, .purpose = Purpose::gradients},
           "MLP gradient shard"};
  for (int t = 0; t < axis_.D(); ++t) {
    ring.begin_hop();
    if (ring.last()) moments.last_step();
    const MlpMatrices W(ring.rows());
    const Activations of = activations(X, ring.shard(), saved);
    if (!saved.gate.exists()) {
      compute.gemm(of.gate, X, W.W1.transposed(0, 1));
      compute.gemm(of.up, X, W.W3.transposed(0, 1));
    }
    OwnedTensor dgate = axis_.step(axis_.sums, {X.size(0), W.W1.size(0)}, "gradient of gate");
    OwnedTensor dup = axis_.step(axis_.sums, {X.size(0), W.W1.size(0)}, "gradient of up");
    compute.gemm(dup, dY, W.W2t.transposed(0, 1));  // of the gated activation, until the next line
    compute.swiglu_backward(dgate, dup, dup, of.gate, of.up);
    compute.gemm(dX, dgate, W.W1, t == 0 ? Write::replace : Write::add);
    compute.gemm(dX, dup, W.W3, Write::add);
    // Last, so that the sum's arrival hides behind the products above.
    const MlpMatrices dW(sums_.part(t));
    compute.gemm(dW.W1, dgate->transposed(0, 1), X);
    compute.gemm(dW.W3, dup->transposed(0, 1), X);
    dgate.reset();
    dup.reset();
    const OwnedTensor a = axis_.step(axis_.dtype, {X.size(0), W.W1.size(0)}, "gated activation");
    compute.swiglu(a, of.gate, of.up);
    compute.gemm(dW.W2t, a->transposed(0, 1), dY);
    sums_.pass_on(t);
    if (t == 0) moments.first_step_done();
    ring.finish_hop();
  }
}

}  // namespace tsp
