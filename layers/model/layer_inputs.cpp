// Computes layers' own inputs; the backward pass projects again.
#include "layers/model/layer_inputs.h"

#include "core/kernels/check.h"
#include "layers/schedules/mlp_columns.h"

#include <cmath>
#include <numbers>

namespace tsprun::detail {

using kernels::Write;

namespace {

/// Views the rows of all layers [tokens, L·w] as [tokens, L, w].
template <class View>
View by_layer(const View& all, std::size_t width) {
  return all.split(1, width);
}

}  // namespace

/// Returns x·Pᵀ/√h.
OwnedTensor LayerInputs::projected(const InputWeights& weights) const {
  OwnedTensor all = room(dtype(), values_->size(1), "projected inputs of layers");
  rank_.compute().gemm("W_inputs", all, embedded_, weights.projection.values.transposed(0, 1));
  rank_.compute().multiply(all, all.view(), 1 / std::sqrt(static_cast<double>(config_.hidden)));
  return all;
}

void LayerInputs::make(const ConstTensor& x, const InputWeights& weights, bool trains) {
  ComputeStream& compute = rank_.compute();
  embedded_ = x;
  if (trains) {
    x_ = rank_.tensor(kept_, dtype(), {x.size(0), x.size(1)}, "embedded tokens of layers' inputs");
    compute.convert(x_, x);
  }
  const std::size_t w = config_.layer_input;
  const OwnedTensor all = projected(weights);
  const Tensor parts = by_layer(all.view(), w);
  compute.rms_norm(parts, parts, weights.gain, config_.norm_epsilon, {.gain_from_one = config_.gains_from_one});
  compute.multiply(values_, values_.view(), std::sqrt(static_cast<double>(w)));
  compute.add(values_, values_.view(), all.view());
  compute.multiply(values_, values_.view(), 1 / std::numbers::sqrt2);
  embedded_ = {};
}

/// Returns σ(gate) ∘ e of a layer.
OwnedTensor LayerInputs::gated(std::size_t layer, const Tensor& gate) const {
  OwnedTensor a = room(dtype(), config_.layer_input, "gated input of a layer");
  const Tensor own = of(values_.view(), layer);
  if (config_.mlp == Mlp::swiglu) rank_.compute().swiglu(a, gate, own);
  else rank_.compute().geglu(a, gate, own, gelu_of(config_.mlp));
  return a;
}

void LayerInputs::add(std::size_t layer, const Tensor& to, const Tensor& x, const LayerInputWeights& weights) const {
  ComputeStream& compute = rank_.compute();
  const OwnedTensor gate = room(dtype(), config_.layer_input, "gate of a layer's input");
  compute.gemm("W_gate of an input", gate, x, weights.gate.values.transposed(0, 1));
  const OwnedTensor a = gated(layer, gate);
  const OwnedTensor y = room(dtype(), config_.hidden, "result of a layer's input");
  compute.gemm("W_result of an input", y, a.view(), weights.result.values);
  apply_norm(compute, config_, y, y.view(), weights.norm);
  compute.add(to, x, y.view());
}

void LayerInputs::add_backward(std::size_t layer, const Tensor& d, const Tensor& x, const LayerInputWeights& weights) {
  ComputeStream& compute = rank_.compute();
  const std::size_t w = config_.layer_input;
  const DType sums = kernels::summed_in(dtype());
  if (!gradients_.exists()) gradients_ = room(sums, values_->size(1), "gradient of layers' inputs");
  const OwnedTensor gate = room(dtype(), w, "gate of a layer's input");
  compute.gemm("W_gate of an input", gate, x, weights.gate.values.transposed(0, 1));
  const OwnedTensor a = gated(layer, gate);
  const OwnedTensor dy = room(sums, config_.hidden, "gradient of the result of a layer's input");
  {
    const OwnedTensor y = room(dtype(), config_.hidden, "result of a layer's input");
    compute.gemm("W_result of an input", y, a.view(), weights.result.values);
    norm_backward(compute, config_, dy, d, y.view(), weights.norm, Write::replace);
  }
  compute.gemm("dW_result of an input", weights.result.gradient, a->transposed(0, 1), dy.view(), Write::add);
  const OwnedTensor da = room(sums, w, "gradient of a gated input");
  const OwnedTensor dgate = room(sums, w, "gradient of the gate of an input");
  compute.gemm("dX of W_result of an input", da, dy.view(), weights.result.values.transposed(0, 1));
  const Tensor own = of(values_.view(), layer);
  const Tensor own_gradient = of(gradients_.view(), layer);
  if (config_.mlp == Mlp::swiglu) compute.swiglu_backward(dgate, own_gradient, da.view(), gate.view(), own);
  else compute.geglu_backward(dgate, own_gradient, da.view(), gate.view(), own, gelu_of(config_.mlp));
  compute.gemm("dW_gate of an input", weights.gate.gradient, dgate->transposed(0, 1), x, Write::add);
  compute.gemm("dX of W_gate of an input", d, dgate.view(), weights.gate.values, Write::add);
}

ConstTensor LayerInputs::finish(const Tensor& d, const InputWeights& weights) {
  ComputeStream& compute = rank_.compute();
  const std::size_t w = config_.layer_input;
  embedded_ = x_.view();
  compute.multiply(gradients_, gradients_.view(), 1 / std::numbers::sqrt2);
  const OwnedTensor dp = room(gradients_->dtype(), values_->size(1), "gradient of projected inputs");
  {
    const OwnedTensor dgain = rank_.tensor(Category::workspace, dp->dtype(), {w}, "gradient of the gain of layers' inputs");
    compute.fill_zero(dgain);
    const OwnedTensor all = projected(weights);
    compute.rms_norm_backward(by_layer(dp.view(), w), dgain, by_layer(gradients_.view(), w), by_layer(all.view(), w),
                              weights.gain, config_.norm_epsilon, Write::replace, {.gain_from_one = config_.gains_from_one});
    // All ranks do the same work, whoever's sum counts.
    compute.add_multiple(weights.gain_gradient, weights.gain_gradient, dgain.view(), weights.adds_to_gain ? 1 : 0);
  }
  compute.multiply(dp, dp.view(), 1 / std::sqrt(static_cast<double>(config_.hidden)));
  compute.gemm("dX of W_inputs", d, dp.view(), weights.projection.values, Write::add);
  compute.gemm("dW_inputs", weights.projection.gradient, dp->transposed(0, 1), embedded_, Write::add);
  compute.multiply(gradients_, gradients_.view(), std::sqrt(static_cast<double>(w)));
  embedded_ = {};
  x_.reset();
  return gradients_.view();
}

}  // namespace tsprun::detail
