// A norm of the model and its parameters: RMSNorm, or LayerNorm with or without a bias in models that have it.
#pragma once

#include "core/rank/compute_stream.h"
#include "layers/io/config.h"

namespace tsprun::detail {

/// Parameters of a norm, each a vector [h]. Gradients are added to, and have no dims without training; the bias has no dims where
/// there is none. A gain without dims: there is no such norm.
struct NormWeights {
  Tensor gain;
  Tensor bias;
  Tensor gain_gradient;
  Tensor bias_gradient;

  bool exists() const { return gain.dims() > 0; }
};

/// Computes y = multiplier·norm(x).
inline void apply_norm(ComputeStream& compute, const ModelConfig& config, const Tensor& y, const ConstTensor& x,
                       const NormWeights& weights, double multiplier = 1) {
  const kernels::NormForm form{.gain_from_one = config.gains_from_one, .multiplier = multiplier};
  if (config.layer_norms()) compute.layer_norm(y, x, weights.gain, weights.bias, config.norm_epsilon, form);
  else compute.rms_norm(y, x, weights.gain, config.norm_epsilon, form);
}

/// Writes or adds dx, and adds to the gradients in `weights`.
inline void norm_backward(ComputeStream& compute, const ModelConfig& config, const Tensor& dx, const ConstTensor& dy,
                          const ConstTensor& x, const NormWeights& weights, kernels::Write write, double multiplier = 1) {
  const kernels::NormForm form{.gain_from_one = config.gains_from_one, .multiplier = multiplier};
  if (config.layer_norms()) {
    compute.layer_norm_backward(dx, weights.gain_gradient, weights.bias_gradient, dy, x, weights.gain, config.norm_epsilon, write,
                                form);
  } else {
    compute.rms_norm_backward(dx, weights.gain_gradient, dy, x, weights.gain, config.norm_epsilon, write, form);
  }
}

}  // namespace tsprun::detail
