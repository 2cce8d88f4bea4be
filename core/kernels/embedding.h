// Rows of a table by number, and the gradient of that.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::kernels {

/// out[t] = table[rows[t]]: table [V, h], out [T, h], types that mix, dense rows. A row number beyond the table is
/// std::invalid_argument, before anything is written.
void gather_rows(const Compute& on, const Tensor& out, const ConstTensor& table, std::span<const std::uint32_t> rows);

/// table[rows[t]] += values[t] for t = 0, 1, …: table [V, h] of f32 or f64, values [T, h]. Each element's sum runs in the order
/// of t.
void scatter_add_rows(const Compute& on, const Tensor& table, const ConstTensor& values, std::span<const std::uint32_t> rows);

}  // namespace tsprun::kernels
