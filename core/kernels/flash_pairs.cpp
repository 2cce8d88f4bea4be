// Rounding of tiles to bf16.
#include "core/kernels/flash_pairs.h"

#include "core/kernels/level.h"
#include "core/kernels/pair_target.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>

#if HWY_ARCH_X86_64

TSP_PAIRS_BEFORE

namespace tsprun::detail::kernels::flash {

namespace {

using pairs::kLanes;
using pairs::kPairRows;

static_assert(kPairRows == kLanes);

/// Returns pairs of a vector's elements and those of the vector below it, rounded.
HWY_INLINE __m512i pairs_of(__m512 even, __m512 odd) {
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);  // even's 16, then odd's
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                         19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

}  // namespace

void round_turned(bf16* to, const float* from, std::size_t depth, std::size_t lines, std::size_t step) {
  for (std::size_t line = 0; line < lines; line += kLanes) {
    const float* at = from + line;
    for (std::size_t i = 0; i < depth; i += 2, at += 2 * step, to += 2 * kPairRows) {
      const __m512 even = _mm512_loadu_ps(at);
      _mm512_storeu_si512(to, pairs_of(even, i + 1 < depth ? _mm512_loadu_ps(at + step) : _mm512_setzero_ps()));
    }
  }
}

void round_rows(bf16* to, const float* from, std::size_t rows, std::size_t columns, std::size_t step) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < columns; i += kLanes) {
      const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + row * step + i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + row * step + i), rounded);
    }
  }
}

}  // namespace tsprun::detail::kernels::flash

TSP_PAIRS_AFTER

#else

namespace tsprun::detail::kernels::flash {
void round_turned(bf16* /* to */, const float* /* from */, std::size_t /* depth */, std::size_t /* lines */,
                  std::size_t /* step */) {
  throw std::logic_error("no bf16 units");
}
void round_rows(bf16* /* to */, const float* /* from */, std::size_t /* rows */, std::size_t /* columns */,
                std::size_t /* step */) {
  throw std::logic_error("no bf16 units");
}
}  // namespace tsprun::detail::kernels::flash

#endif

namespace tsprun::detail::kernels::flash {

bool in_pairs(DType dtype) { return dtype == DType::bf16 && level() >= Level::avx512_bf16; }

void copy_rows(bf16* to, const ConstTensor& view) {
  const std::size_t columns = view.size(1);
  const auto* from = view.as<bf16>();
  for (std::size_t i = 0; i < view.size(0); ++i) {
    std::memcpy(static_cast<void*>(to + i * columns), from + i * view.stride(0), columns * sizeof(bf16));
  }
}

bool all_finite(const bf16* values, std::size_t count) {
  constexpr std::uint32_t kExponent = 0x7f80;
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) finite &= (values[i].bits & kExponent) != kExponent;
  return finite;
}

}  // namespace tsprun::detail::kernels::flash
