// Attention of one query position that sees all keys, as decoding makes for every token.
//
// Keys and values are read once, where they lie, by all query heads that share them: nothing is packed or widened to memory, so
// the memory's speed is the limit.
#pragma once

#include "core/tensor/tensor.h"

#include <cstddef>
#include <span>

namespace tsprun::detail::kernels::flash {

/// Returns the bytes of workspace that attend_single() needs for `queries` heads of dim `head_dim`, which don't grow with the
/// number of keys.
std::size_t single_workspace(std::size_t queries, std::size_t head_dim, DType sums);

/// Computes o [g, d] and lse [g] or [g, 2] of the g query heads q [g, d] that share keys and values k, v [S_k, d], as
/// flash_forward() does. `bound`: Attention::bound(). The last dim of each view is dense; the workspace begins at a cache line.
void attend_single(std::span<std::byte> workspace, double scale, double bound, const Tensor& o, const Tensor& lse,
                   const ConstTensor& q, const ConstTensor& k, const ConstTensor& v);

}  // namespace tsprun::detail::kernels::flash
