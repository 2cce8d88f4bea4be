// Register tiles and packing.
#include "core/kernels/pair_panels.h"

#include "core/kernels/amx_product.h"
#include "core/kernels/check.h"
#include "core/kernels/level.h"
#include "core/kernels/pair_target.h"
#include "core/kernels/parallel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#if HWY_ARCH_X86_64

TSP_PAIRS_BEFORE

namespace tsprun::detail::kernels::pairs {

namespace {

/// Sums of a register tile, in vectors: 24 of 32 registers hold them, the others a row of B and an element of A.
constexpr std::size_t kSums = 24;
/// Rows of a register tile at most.
constexpr std::size_t kMostRows = 8;
constexpr std::uint32_t kEven = 0xffff;  // of a pair's bits, those of its first element
constexpr std::uint32_t kOdd = 0xffff0000;

/// Computes rows [row, row + kRows) of C, or those of them that exist.
template <bool kTurned, std::size_t kVectors, std::size_t kRows>
HWY_INLINE void multiply_rows(const PairProduct& product, std::size_t row) {
  const std::size_t pairs = (product.depth + 1) / 2;
  const std::size_t rows = std::min(kRows, product.rows - row);
  const __mmask16 last = mask16(product.columns - (kVectors - 1) * kLanes);
  const bf16* a[kRows];  // a row that doesn't exist reads the last one that does
  for (std::size_t i = 0; i < kRows; ++i) {
    const std::size_t at = row + std::min(i, rows - 1);
    a[i] = kTurned ? product.a + at / kPairRows * pairs * 2 * kPairRows + at % kPairRows * 2 : product.a + at * product.a_step;
  }
  __m512 sums[kRows][kVectors];
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const bool read = product.add && i < rows;
      const float* from = product.c + (row + i) * product.c_step + v * kLanes;
      sums[i][v] = read ? _mm512_maskz_loadu_ps(v + 1 == kVectors ? last : __mmask16{0xffff}, from) : _mm512_setzero_ps();
    }
  }
  constexpr std::size_t kStep = kTurned ? 2 * kPairRows : 2;
  const auto* b = reinterpret_cast<const std::uint32_t*>(product.b);
  const std::size_t b_width = product.b_width;
  const auto add_pair = [&](std::size_t pair) TSP_PAIRS_ATTR {
    __m512bh b_row[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) b_row[v] = (__m512bh)_mm512_loadu_si512(b + pair * b_width + v * kLanes);
    for (std::size_t i = 0; i < kRows; ++i) {
      std::uint32_t element = 0;
      std::memcpy(&element, a[i] + pair * kStep, sizeof element);
      const auto spread = (__m512bh)_mm512_set1_epi32(static_cast<int>(element));
      for (std::size_t v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], spread, b_row[v]);
    }
  };
  // The same of one element of a pair: the other may be infinite, or missing in a row of A.
  const auto add_half = [&](std::size_t pair, std::uint32_t counts) TSP_PAIRS_ATTR {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(counts));
    for (std::size_t i = 0; i < kRows; ++i) {
      const std::size_t odd = counts == kOdd ? 1 : 0;
      const std::uint32_t element = std::uint32_t{a[i][pair * kStep + odd].bits} << (16 * odd);
      const auto spread = (__m512bh)_mm512_set1_epi32(static_cast<int>(element));
      for (std::size_t v = 0; v < kVectors; ++v) {
        const __m512i b_row = _mm512_and_si512(_mm512_loadu_si512(b + pair * b_width + v * kLanes), mask);
        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], spread, (__m512bh)b_row);
      }
    }
  };
  std::size_t pair = product.skip / 2;
  if (product.skip % 2 != 0) add_half(pair++, kOdd);
  for (const std::size_t whole = product.depth / 2; pair < whole; ++pair) add_pair(pair);
  if (pair < pairs) add_half(pair, kEven);
  for (std::size_t i = 0; i < rows; ++i) {
    float* to = product.c + (row + i) * product.c_step;
    for (std::size_t v = 0; v + 1 < kVectors; ++v) _mm512_storeu_ps(to + v * kLanes, sums[i][v]);
    _mm512_mask_storeu_ps(to + (kVectors - 1) * kLanes, last, sums[i][kVectors - 1]);
  }
}

template <bool kTurned, std::size_t kVectors>
void multiply_panel(const PairProduct& product) {
  constexpr std::size_t kRows = std::min(kMostRows, kSums / kVectors);
  for (std::size_t row = 0; row < product.rows; row += kRows) multiply_rows<kTurned, kVectors, kRows>(product, row);
}

template <bool kTurned>
HWY_INLINE void multiply_any(const PairProduct& product) {
  if (product.columns > 3 * kLanes) return multiply_panel<kTurned, 4>(product);
  if (product.columns > 2 * kLanes) return multiply_panel<kTurned, 3>(product);
  if (product.columns > kLanes) return multiply_panel<kTurned, 2>(product);
  multiply_panel<kTurned, 1>(product);
}

/// Packs a matrix whose rows are summands: 16 columns of two rows at a time.
void pack_rows(bf16* to, std::size_t width, const bf16* from, std::size_t depth, std::size_t lines, std::size_t step) {
  const std::size_t pairs = (depth + 1) / 2;
  for (std::size_t pair = 0; pair < pairs; ++pair, from += 2 * step) {
    bf16* at = to + pair * 2 * width;
    const bool whole = 2 * pair + 1 < depth;
    for (std::size_t first = 0; first < lines; first += width, at += pairs * 2 * width) {
      for (std::size_t i = 0; i < width; i += kLanes) {
        const __mmask16 there = mask16(lines - std::min(lines, first + i));
        const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, from + first + i));
        const __m512i odd =
            whole ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, from + step + first + i)) : _mm512_setzero_si512();
        _mm512_storeu_si512(at + 2 * i, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
      }
    }
  }
}

/// Packs a matrix of which each line's summands are adjacent, `step` elements from one line to the next.
void pack_lines(bf16* to, std::size_t width, const bf16* from, std::size_t depth, std::size_t lines, std::size_t step) {
  const std::size_t pairs = (depth + 1) / 2;
  for (std::size_t line = 0; line < lines; line += kLanes) {
    bf16* at = to + line / width * pairs * 2 * width + line % width * 2;
    const std::size_t there = std::min(kLanes, lines - line);
    for (std::size_t pair = 0; pair < pairs; pair += kLanes) {
      const __mmask32 mask = mask32(depth - 2 * pair);
      __m512i block[16];
      for (std::size_t i = 0; i < kLanes; ++i) {
        block[i] = i < there ? _mm512_maskz_loadu_epi16(mask, from + (line + i) * step + 2 * pair) : _mm512_setzero_si512();
      }
      turn(block);
      const std::size_t count = std::min(kLanes, pairs - pair);
      for (std::size_t i = 0; i < count; ++i) _mm512_storeu_si512(at + (pair + i) * 2 * width, block[i]);
    }
  }
  // Vectors of the last panel that hold no line at all.
  for (std::size_t line = round_up(lines, kLanes); line % width != 0; line += kLanes) {
    bf16* at = to + line / width * pairs * 2 * width + line % width * 2;
    for (std::size_t pair = 0; pair < pairs; ++pair) _mm512_storeu_si512(at + pair * 2 * width, _mm512_setzero_si512());
  }
}

}  // namespace

void multiply(const PairProduct& product) {
  if (in_tiles()) return amx::multiply(product);
  if (product.a_turned) {
    multiply_any<true>(product);
  } else {
    multiply_any<false>(product);
  }
}

void pack(bf16* to, std::size_t width, const ConstTensor& view) {
  if (dense_rows(view)) return pack_rows(to, width, view.as<bf16>(), view.size(0), view.size(1), view.stride(0));
  pack_lines(to, width, view.as<bf16>(), view.size(0), view.size(1), view.stride(1));
}

void turn_to_rows(bf16* to, std::size_t step, const ConstTensor& view) {
  const std::size_t depth = view.size(1);
  const std::size_t apart = view.stride(1);
  for (std::size_t row = 0; row < view.size(0); row += kLanes) {
    const __mmask16 there = mask16(view.size(0) - row);
    const std::size_t rows = std::min(kLanes, view.size(0) - row);
    const bf16* from = view.as<bf16>() + row;
    for (std::size_t at = 0; at < depth; at += 2 * kLanes) {
      __m512i block[16];
      for (std::size_t i = 0; i < kLanes; ++i) {
        const auto half = [&](std::size_t l) TSP_PAIRS_ATTR {
          return l < depth ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, from + l * apart)) : _mm512_setzero_si512();
        };
        block[i] = _mm512_or_si512(half(at + 2 * i), _mm512_slli_epi32(half(at + 2 * i + 1), 16));
      }
      turn(block);
      for (std::size_t i = 0; i < rows; ++i) _mm512_storeu_si512(to + (row + i) * step + at, block[i]);
    }
  }
}

}  // namespace tsprun::detail::kernels::pairs

TSP_PAIRS_AFTER

namespace tsprun::detail::kernels::pairs {
bool offered() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}
}  // namespace tsprun::detail::kernels::pairs

#else

namespace tsprun::detail::kernels::pairs {
bool offered() { return false; }
void multiply(const PairProduct& /* product */) { throw std::logic_error("no bf16 units"); }
void pack(bf16* /* to */, std::size_t /* width */, const ConstTensor& /* view */) { throw std::logic_error("no bf16 units"); }
void turn_to_rows(bf16* /* to */, std::size_t /* step */, const ConstTensor& /* view */) {
  throw std::logic_error("no bf16 units");
}
}  // namespace tsprun::detail::kernels::pairs

#endif

namespace tsprun::detail::kernels::pairs {
bool in_tiles() { return level() >= Level::amx_bf16; }
}  // namespace tsprun::detail::kernels::pairs
