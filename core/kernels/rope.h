// Rotary position embedding as Hugging Face rotates it (rotate_half): element i of a head pairs with element i + d/2.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::kernels {

enum class Rotation : std::uint8_t { forward, inverse };

/// table [S, d], of a type of sums: cos(position·theta^(−2i/d)) for i < d/2, then the sines. Angles are computed in f64. d is
/// even.
void rope_table(const Compute& on, const Tensor& table, std::span<const std::int64_t> positions, double theta);

/// x [B, S, n, d] in place, with the table's row s for token s of every sequence:
///   x_i' = x_i·cos − x_{i+d/2}·sin,  x_{i+d/2}' = x_{i+d/2}·cos + x_i·sin; the inverse (also the transpose) negates the sines.
/// Dense rows; bf16 goes with an f32 table.
void rope(const Compute& on, const Tensor& x, const ConstTensor& table, Rotation rotation);

}  // namespace tsprun::kernels
