// The activations of MLPs, gated (SwiGLU) and plain (GeLU). All views of a call have one shape, dense rows and types that mix:
// bf16 with f32 (arithmetic in f32, one rounding), f64 with f64. Outputs may be inputs' memory where the types are equal.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>

namespace tsprun::kernels {

/// y = silu(gate) ∘ up, silu(g) = g·σ(g).
void swiglu(const Compute& on, const Tensor& y, const ConstTensor& gate, const ConstTensor& up);
/// dgate = dy ∘ up ∘ σ(g)(1 + g(1 − σ(g))), dup = dy ∘ silu(g).
void swiglu_backward(const Compute& on, const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                     const ConstTensor& up);

enum class Gelu : std::uint8_t {
  exact,  ///< x·Φ(x), Φ the normal distribution
  tanh    ///< x·(1 + tanh(√(2/π)(x + 0.044715·x³)))/2
};
/// y = gelu(x).
void gelu(const Compute& on, const Tensor& y, const ConstTensor& x, Gelu form);
/// dx = dy ∘ gelu'(x).
void gelu_backward(const Compute& on, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, Gelu form);

}  // namespace tsprun::kernels
