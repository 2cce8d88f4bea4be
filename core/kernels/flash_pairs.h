// Tiles of flash attention in bf16 units (pair_panels.h): scores and sums are in f32, and what the second products read of
// probabilities and their gradients is rounded to bf16.
#pragma once

#include "core/kernels/pair_panels.h"
#include "core/tensor/tensor.h"

#include <cstddef>

namespace tsprun::detail::kernels::flash {

/// Returns whether attention of operands of this dtype is computed in bf16 units, at the level that the kernels run at (level.h).
bool in_pairs(DType dtype);

/// Rounds the matrix `from` [depth, lines], rows `step` elements apart, to bf16 (to nearest, ties to even; denormals become zero)
/// and packs it as a turned A of products that sum over `depth`: panels of kPairRows lines, where the missing half of an odd
/// depth's last pair is arbitrary. Reads and writes whole panels: `lines` rounded up to kPairRows. Call it only if in_pairs().
void round_turned(bf16* to, const float* from, std::size_t depth, std::size_t lines, std::size_t step);
/// Rounds the matrix `from` [rows, columns], rows `step` elements apart in `from` and `to`, in the same way. Reads and writes
/// `columns` rounded up to kPairRows. Call it only if in_pairs().
void round_rows(bf16* to, const float* from, std::size_t rows, std::size_t columns, std::size_t step);

/// Copies the rows of `view` [rows, columns] to adjacent memory.
void copy_rows(bf16* to, const ConstTensor& view);
/// Returns whether all `count` values are finite.
bool all_finite(const bf16* values, std::size_t count);

}  // namespace tsprun::detail::kernels::flash
