// Embedding lookup: gathers rows of a table by number; its gradient adds values to those rows.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::detail::kernels {

/// Copies out[t] = table[rows[t]] for each t. table [V, h] and out [T, h] have dense rows; bf16 and f32 may be mixed. Throws
/// std::invalid_argument, before it writes anything, if a row number is beyond the table.
void gather_rows(const Compute& on, const Tensor& out, const ConstTensor& table, std::span<const std::uint32_t> rows);

/// Adds values[t] to table[rows[t]] for t = 0, 1, …. table [V, h] is f32 or f64, values are [T, h]. Every element is summed in
/// the order of t, so the number of threads changes no bit. Throws std::invalid_argument as gather_rows() does.
void scatter_add_rows(const Compute& on, const Tensor& table, const ConstTensor& values, std::span<const std::uint32_t> rows);

}  // namespace tsprun::detail::kernels
