// RMSNorm and LayerNorm over the last dim.
//
// Statistics are not kept: the backward makes them again from x, which every recomputation mode keeps. Shapes: x, y, dx, dy [...,
// h]; gain, bias [h]; dgain, dbias [h] of the type of sums. x, y, dx, dy, gain and bias may mix bf16 and f32; f64 goes with f64.
// Rows dense.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::kernels {

/// y = gain ∘ x̂ with x̂ = x / √(mean(x²) + epsilon). `y` may be `x`.
void rms_norm(const Compute& on, const Tensor& y, const ConstTensor& x, const ConstTensor& gain, double epsilon);

/// With dx̂ = gain ∘ dy: dx = (dx̂ − x̂·mean(dx̂ ∘ x̂)) / √(mean(x²) + epsilon), written or added; dgain += Σ over rows of dy ∘ x̂, in
/// the order of rows. `dx` may be `dy`. Workspace: norm_backward_workspace() bytes.
void rms_norm_backward(const Compute& on, const Tensor& dx, const Tensor& dgain, const ConstTensor& dy, const ConstTensor& x,
                       const ConstTensor& gain, double epsilon, Write write = Write::replace);

/// y = gain ∘ x̂ + bias with x̂ = (x − mean(x)) / √(var(x) + epsilon). `y` may be `x`.
void layer_norm(const Compute& on, const Tensor& y, const ConstTensor& x, const ConstTensor& gain, const ConstTensor& bias,
                double epsilon);

/// With dx̂ = gain ∘ dy: dx = (dx̂ − mean(dx̂) − x̂·mean(dx̂ ∘ x̂)) / √(var(x) + epsilon), written or added; dgain += Σ dy ∘ x̂ and
/// dbias += Σ dy, in the order of rows. Workspace: norm_backward_workspace() bytes.
void layer_norm_backward(const Compute& on, const Tensor& dx, const Tensor& dgain, const Tensor& dbias, const ConstTensor& dy,
                         const ConstTensor& x, const ConstTensor& gain, double epsilon, Write write = Write::replace);

/// Bytes of workspace for either backward, whatever the shape.
std::size_t norm_backward_workspace();

}  // namespace tsprun::kernels
