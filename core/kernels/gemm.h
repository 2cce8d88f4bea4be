// Matrix products on OpenBLAS or in bf16 units, cut into tiles.
//
// A tile is a part of the output and a stretch of the sum over K. Its size follows from the shapes alone and keeps one BLAS call
// below about 2 ms at 100 GFLOP/s. Threads share the tiles of the output; one thread adds up all stretches of a tile's sum, in
// order, so the number of threads changes no bit. No tile is so deep that OpenBLAS cuts K again, at a depth that depends on its
// version and core. Where the level has bf16 units, they multiply operands of which one is in bf16, or both (gemm_pairs.h).
// Otherwise bf16 operands are widened to f32 tile by tile, since OpenBLAS has no usable bf16 product. Products of up to four rows
// take neither way (thin_product.h).
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::detail::kernels {

/// Computes C = A·B, or C += A·B with Write::add; A [M, K], B [K, N], C [M, N]. A and B must be dense along either dim, so a
/// weight w stored as [out, in] is multiplied as x·w.transposed(0, 1); C has dense rows. All three are f64, or each is f32 or
/// bf16: sums are then in f32, and a bf16 C is rounded once, when its sum (including its earlier value) is complete. In bf16
/// units an f32 operand beside a bf16 one is rounded to bf16. K = 0 writes zeros, or adds nothing. Ticks between tiles. Needs
/// gemm_workspace() bytes of workspace. Throws std::invalid_argument if the views don't fit, and what blas::multiply() throws.
void gemm(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write = Write::replace);

/// Returns the bytes of workspace that gemm() needs for these views and this many threads: none if nothing is bf16, otherwise a
/// few MiB a thread at most. A thin product needs up to 32 copies of C, whatever the number of threads.
std::size_t gemm_workspace(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads);

}  // namespace tsprun::detail::kernels
