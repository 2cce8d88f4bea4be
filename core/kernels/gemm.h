// Matrix products on OpenBLAS, in tiles.
//
// A tile is a part of the output and a stretch of the sum; its size follows from the shapes alone and keeps a BLAS call below
// about 2 ms at 100 GFLOP/s. Tiles of the output are shared out over the threads; a thread adds up all stretches of its tile's
// sum, in order. bf16 operands are widened tile by tile; OpenBLAS has no usable bf16 product.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::kernels {

/// C = A·B, or C += A·B: A [M, K], B [K, N], C [M, N]. A and B are dense along either dim, so a weight stored [out, in] is
/// multiplied as x·w.transposed(0, 1); C has dense rows. All f64, or each of them f32 or bf16: sums are in f32, and a bf16 C is
/// rounded once, when its sum (its earlier value included) is complete. K = 0 writes zeros, or adds nothing. Ticks between tiles.
/// Workspace: gemm_workspace() bytes, none where nothing is bf16.
void gemm(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write = Write::replace);

/// Bytes of workspace for gemm() with these views and this many threads; a few MiB a thread at most.
std::size_t gemm_workspace(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads);

}  // namespace tsprun::kernels
