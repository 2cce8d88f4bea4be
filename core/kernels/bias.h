// Biases of linear layers: a vector that is added to every row, and its gradient, the sum over rows.
//
// Shapes: x, dy [..., n] with dense rows; bias, dbias [n]. bf16 and f32 mix, f64 goes with f64.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::kernels {

/// x += bias, in every row.
void add_bias(const Compute& on, const Tensor& x, const ConstTensor& bias);

/// dbias += Σ over rows of dy, each column in the order of rows. dbias is of the type of sums.
void bias_backward(const Compute& on, const Tensor& dbias, const ConstTensor& dy);

}  // namespace tsprun::kernels
