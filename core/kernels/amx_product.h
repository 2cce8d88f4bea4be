// Products of bf16 matrices by AMX, the matrix tiles of Intel's Xeons since Sapphire Rapids: sixteen times as many products a
// cycle as AVX512_BF16 has there. They take operands as pair_panels.h packs them, and differ in the order of sums
// (tile_product-inl.h).
#pragma once

#include "core/kernels/pair_panels.h"

namespace tsprun::detail::kernels::amx {

/// Returns whether this machine has AMX for bf16 and lets this process use it: the first call asks Linux for permission
/// (arch_prctl(2), ARCH_REQ_XCOMP_PERM). All threads of the process get it, and children until they execute another program. It
/// is refused where a thread's alternate signal stack has no room for the tiles, and later such stacks must have it.
bool offered();
/// Computes the product on the calling thread. Call it only if offered().
void multiply(const pairs::PairProduct& product);

}  // namespace tsprun::detail::kernels::amx
