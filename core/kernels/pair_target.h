// Macros that source files with AVX512_BF16's instructions share. Their functions bear the target as an attribute, between
// TSP_PAIRS_BEFORE and TSP_PAIRS_AFTER: Highway 1.0.3 has no target with AVX512_BF16, and the rest of the program must run
// without it.
#pragma once

#include <hwy/base.h>

#if HWY_ARCH_X86_64

#include <immintrin.h>

#include <cstddef>

#define TSP_PAIRS_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"
// Lambdas don't inherit it.
#define TSP_PAIRS_ATTR __attribute__((always_inline, target(TSP_PAIRS_TARGET)))

#if HWY_COMPILER_CLANG
#define TSP_PAIRS_BEFORE HWY_PUSH_ATTRIBUTES(TSP_PAIRS_TARGET)
#define TSP_PAIRS_AFTER HWY_POP_ATTRIBUTES
#else
// g++ 12 takes the undefined operands inside its own intrinsics for mistakes.
#define TSP_PAIRS_BEFORE \
  HWY_DIAGNOSTICS(push)  \
  HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wmaybe-uninitialized") HWY_PUSH_ATTRIBUTES(TSP_PAIRS_TARGET)
#define TSP_PAIRS_AFTER HWY_POP_ATTRIBUTES HWY_DIAGNOSTICS(pop)
#endif

namespace tsprun::detail::kernels::pairs {
/// Pairs of a vector, and sums in f32.
inline constexpr std::size_t kLanes = 16;
}  // namespace tsprun::detail::kernels::pairs

#endif
