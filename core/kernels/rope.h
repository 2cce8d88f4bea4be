// Rotary position embedding (RoPE; Su et al., "RoFormer", arXiv 2104.09864). The first r dims of a head turn in pairs, the others
// stay. Hugging Face's layout (rotate_half) pairs element i with element i + r/2, GPT-J's element 2i with 2i + 1.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::detail::kernels {

/// Direction of the rotation. `transposed` is what the backward pass needs; it is also the inverse if the table has no factors.
enum class Rotation : std::uint8_t { forward, transposed };

/// Pairing of elements.
enum class RotaryPairs : std::uint8_t {
  halves,     ///< i and i + r/2
  neighbours  ///< 2i and 2i + 1
};

/// Fills table [S, r], f32 or f64: row s holds cos(positions[s]·frequencies[i]) for i < r/2, then the sines, multiplied by
/// factors[s]; no factors: all are 1. Angles are computed in f64. r must be twice the number of frequencies, radians per token.
void rope_table(const Compute& on, const Tensor& table, std::span<const std::int64_t> positions,
                std::span<const double> frequencies, std::span<const double> factors = {});

/// Rotates the first r elements of each head of x [B, S, n, d] in place, token s of every sequence by row s of the table [S, r]:
///   a' = a·cos − b·sin,  b' = b·cos + a·sin for each pair (a, b); the transposed rotation negates the sines.
/// x has dense rows; the table is f32 for bf16 and f32, and f64 for f64. `rows` [B, S], if not empty, says which row of the
/// table, which may then have any number of them, turns each token.
void rope(const Compute& on, const Tensor& x, const ConstTensor& table, Rotation rotation,
          RotaryPairs pairs = RotaryPairs::halves, std::span<const std::uint32_t> rows = {});

}  // namespace tsprun::detail::kernels
