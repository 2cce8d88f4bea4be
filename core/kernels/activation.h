// Activation functions of MLPs, forward and backward: SwiGLU and GeGLU (gated), and GeLU (plain).
//
// All views of one call have the same shape and dense rows. bf16 and f32 may be mixed: arithmetic is in f32 and each result is
// rounded once. f64 goes only with f64. An output may be the same memory as an input of the same dtype.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>

namespace tsprun::detail::kernels {

/// Computes y = silu(gate) ∘ up, with silu(g) = g·σ(g). Throws std::invalid_argument if the views don't fit.
void swiglu(const Compute& on, const Tensor& y, const ConstTensor& gate, const ConstTensor& up);
/// Computes dgate = dy ∘ up ∘ σ(g)(1 + g(1 − σ(g))) and dup = dy ∘ silu(g), with g = gate.
void swiglu_backward(const Compute& on, const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                     const ConstTensor& up);

/// The two forms of GeLU that models use.
enum class Gelu : std::uint8_t {
  exact,  ///< x·Φ(x), with Φ the standard normal distribution function
  tanh    ///< x·(1 + tanh(√(2/π)(x + 0.044715·x³)))/2
};
/// Computes y = gelu(x).
void gelu(const Compute& on, const Tensor& y, const ConstTensor& x, Gelu form);
/// Computes dx = dy ∘ gelu'(x).
void gelu_backward(const Compute& on, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, Gelu form);

/// Computes y = gelu(gate) ∘ up.
void geglu(const Compute& on, const Tensor& y, const ConstTensor& gate, const ConstTensor& up, Gelu form);
/// Computes dgate = dy ∘ up ∘ gelu'(gate) and dup = dy ∘ gelu(gate).
void geglu_backward(const Compute& on, const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                    const ConstTensor& up, Gelu form);

}  // namespace tsprun::detail::kernels
