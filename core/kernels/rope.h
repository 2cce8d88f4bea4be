// Rotary position embedding (RoPE; Su et al., "RoFormer", arXiv 2104.09864) in Hugging Face's layout (rotate_half): element i of
// a head is paired with element i + d/2.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::detail::kernels {

/// Direction of the rotation. `inverse` is also the transpose, which the backward pass needs.
enum class Rotation : std::uint8_t { forward, inverse };

/// Fills table [S, d], f32 or f64: row s holds cos(positions[s]·frequencies[i]) for i < d/2, then the sines. Angles are computed
/// in f64. d must be twice the number of frequencies, radians per token.
void rope_table(const Compute& on, const Tensor& table, std::span<const std::int64_t> positions,
                std::span<const double> frequencies);

/// Rotates x [B, S, n, d] in place, token s of every sequence by row s of the table:
///   x_i' = x_i·cos − x_{i+d/2}·sin,  x_{i+d/2}' = x_{i+d/2}·cos + x_i·sin; the inverse negates the sines.
/// x has dense rows; the table is f32 for bf16 and f32, and f64 for f64.
void rope(const Compute& on, const Tensor& x, const ConstTensor& table, Rotation rotation);

}  // namespace tsprun::detail::kernels
