// Products of a few rows with a matrix, as decoding makes for every token.
//
// Such a product reads every element of B once and computes next to nothing with it, so the memory's speed is its limit. gemm()'s
// tiles would pack B first, which reads and writes it once more; here B streams through the registers where it lies, bf16 widened
// on the way. Tasks are stretches of B's stored rows. If B is stored as [N, K], a stretch gives elements of C. If it is stored as
// [K, N], a stretch gives a partial sum of all of C, and the partial sums are added in order.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::detail::kernels {

/// Returns whether thin_product() computes A·B: A has 1 to 4 rows, which are dense, and neither K nor N is 0. The views are those
/// that gemm() takes.
bool thin(const ConstTensor& a, const ConstTensor& b);

/// Returns the bytes of workspace that thin_product() needs, whatever the number of threads.
std::size_t thin_product_workspace(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b);

/// Computes what gemm() computes, for views that gemm() has checked and for which thin() holds. The order of sums follows from
/// the shapes alone. Ticks between tasks: 65536 elements of B or one stored row of it, or more if there would be over 32 partial
/// sums.
void thin_product(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write);

}  // namespace tsprun::detail::kernels
