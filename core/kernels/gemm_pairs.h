// Matrix products in bf16 units (pair_panels.h): of two bf16 operands, or of a bf16 and an f32 one, which is rounded to bf16
// first. So a gradient meets a bf16 weight or activation, as on GPUs.
//
// A task is a tile of the output. Its sum is cut into stretches, for which A's and B's parts are packed, so that a panel of B
// stays in the L1 cache while all rows of A pass by. An element's bits depend neither on tiles nor on stretches.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstddef>

namespace tsprun::detail::kernels::pairs {

/// Computes what kernels::gemm() does, for A and B in bf16, or one of them in f32, and C in bf16 or f32. The views have been
/// checked, and C isn't empty. Needs workspace_of() bytes of workspace.
void gemm(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write);
/// Returns the bytes of workspace that gemm() needs.
std::size_t workspace_of(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads);

}  // namespace tsprun::detail::kernels::pairs
