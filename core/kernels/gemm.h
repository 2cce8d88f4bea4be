// Matrix products, cut into tiles of the output.
//
// Threads share the tiles; one thread adds up a tile's sum, in order, so neither the number of threads nor the size of tiles
// changes a bit. The sum is cut into stretches, for which B's part is packed, and a tile's rows into blocks, for which A's part
// is packed where it isn't read in place. So a panel of B stays in the first two caches while a block's rows of A pass by. Where
// the level has bf16 units, they multiply operands of which one is in bf16, or both; otherwise bf16 is widened to f32 as it is
// packed. Products of up to four rows take neither way (thin_product.h). Where OpenBLAS is chosen (gemm_library.h), it multiplies
// the tiles of products that are f32 or f64 throughout; their sizes then follow from the shapes alone, since OpenBLAS' bits may
// depend on them.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::detail::kernels {

/// Computes C = A·B, or C += A·B with Write::add; A [M, K], B [K, N], C [M, N]. A and B must be dense along either dim, so a
/// weight w stored as [out, in] is multiplied as x·w.transposed(0, 1); C has dense rows. All three are f64, or each is f32 or
/// bf16: sums are then in f32, and a bf16 C is rounded once, when its sum (including its earlier value) is complete. In bf16
/// units an f32 operand beside a bf16 one is rounded to bf16. K = 0 writes zeros, or adds nothing. Ticks between blocks.
/// Needs gemm_workspace() bytes of workspace. Throws std::invalid_argument if the views don't fit, and what load_gemm_library()
/// throws.
void gemm(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write = Write::replace);

/// Returns the bytes of workspace that gemm() needs for these views and this many threads, at any level: at most 2.6 MiB a thread
/// for operands and, if C is in bf16, 1.1 MiB for sums. A thin product needs up to 32 copies of C, whatever the number of
/// threads.
std::size_t gemm_workspace(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads);

}  // namespace tsprun::detail::kernels
