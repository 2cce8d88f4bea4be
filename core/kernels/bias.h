// Biases of linear layers: adding a vector to every row, and its gradient, the sum over rows.
//
// Shapes: x, dy [..., n] with dense rows; bias, dbias [n]. bf16 and f32 may be mixed; f64 goes only with f64.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::detail::kernels {

/// Adds `bias` to every row of `x`, in place.
void add_bias(const Compute& on, const Tensor& x, const ConstTensor& bias);

/// Adds the sum over all rows of `dy` to `dbias`. Each column is summed in the order of rows, so the number of threads changes no
/// bit. `dbias` is f32, or f64 if `dy` is f64.
void bias_backward(const Compute& on, const Tensor& dbias, const ConstTensor& dy);

}  // namespace tsprun::detail::kernels
