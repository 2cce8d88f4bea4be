// Macros, masks and a transposition that source files with AVX512_BF16's instructions share. Their functions bear the target as
// an attribute, between TSP_PAIRS_BEFORE and TSP_PAIRS_AFTER: Highway 1.0.3 has no target with AVX512_BF16, and the rest of the
// program must run without it.
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

TSP_PAIRS_BEFORE
namespace tsprun::detail::kernels::pairs {
/// Pairs of a vector, and sums in f32.
inline constexpr std::size_t kLanes = 16;

/// Returns a mask of the first `count` lanes, or of all that there are.
HWY_INLINE __mmask16 mask16(std::size_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffffU : (1U << count) - 1U); }
HWY_INLINE __mmask32 mask32(std::size_t count) {
  return count >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((1U << count) - 1U);
}

/// Turns 16 vectors of 16 pairs: lane j of vector i becomes lane i of vector j.
HWY_INLINE void turn(__m512i (&r)[16]) {
  __m512i t[16];
  for (std::size_t i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (std::size_t i = 0; i < 16; i += 4) {
    for (std::size_t j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
    }
  }
  // r[4g + c] holds column c of each 128-bit lane's four, for rows 4g … 4g + 3.
  for (std::size_t c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[4 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
  for (std::size_t i = 0; i < 16; ++i) r[i] = t[i];
}

}  // namespace tsprun::detail::kernels::pairs
TSP_PAIRS_AFTER

#endif
