// AdamW, and the pieces of clipping by global norm.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>

namespace tsprun::kernels {

struct AdamW {
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;    ///< 0 for parameters that don't decay
  std::uint64_t step = 1;     ///< of this update, from 1
  double gradient_scale = 1;  ///< gradients are multiplied by it first: the clip's factor
};

/// One update of contiguous tensors of one size, with g = gradient_scale·gradient:
///   m = β1·m + (1 − β1)·g,  v = β2·v + (1 − β2)·g²,
///   p = p·(1 − lr·decay) − lr·(m / (1 − β1^step)) / (√(v / (1 − β2^step)) + ε).
/// gradient, m and v are of the type of sums. bf16 parameters have an f32 `master` copy that is updated, and are rounded from it;
/// f32 and f64 parameters are updated themselves, and `master` is an empty view.
void adamw(const Compute& on, const AdamW& options, const Tensor& parameters, const Tensor& master, const Tensor& m,
           const Tensor& v, const ConstTensor& gradient);

/// Σ x² of a contiguous tensor, in f64: sums of blocks whose bounds depend on the count alone, added in order.
/// Workspace: sum_of_squares_workspace() bytes.
double sum_of_squares(const Compute& on, const ConstTensor& x);
std::size_t sum_of_squares_workspace(std::size_t elements);

/// The factor that clips gradients of this norm: min(1, limit/(norm + 1e-6)), as PyTorch's clip_grad_norm_. No clipping with
/// limit 0.
double clip_factor(double norm, double limit);

}  // namespace tsprun::kernels
