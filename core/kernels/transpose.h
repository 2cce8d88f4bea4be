// Transposing matrices from memory to memory.
#pragma once

#include "core/tensor/tensor.h"

namespace tsprun::detail::kernels {

/// Copies to[j, i] = from[i, j]. Shapes: to [m, n], from [n, m], both with dense rows, of one dtype, and apart in memory.
void transpose(const Tensor& to, const ConstTensor& from);

}  // namespace tsprun::detail::kernels
