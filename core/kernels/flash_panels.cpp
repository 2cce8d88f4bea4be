// Register tiles of the matrix products, and the packing of panels.
#include "core/kernels/flash_panels.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/flash_panels.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

#ifndef TSP_KERNELS_FLASH_WIDENED
#define TSP_KERNELS_FLASH_WIDENED
namespace tsprun::detail::kernels::flash {
inline float widened(bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
inline float widened(float value) { return value; }
inline double widened(double value) { return value; }
}  // namespace tsprun::detail::kernels::flash
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels::flash {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::HWY_NAMESPACE::kSquare;
using kernels::HWY_NAMESPACE::load;
using kernels::HWY_NAMESPACE::store;
using kernels::HWY_NAMESPACE::transpose_square;

/// Vectors of C that are held in registers: 12 of 16 registers, or 24 of 32. The others hold a row of B and an element of A.
constexpr std::size_t kSums = HWY_MAX_BYTES == 64 || HWY_ARCH_ARM_A64 ? 24 : 12;

/// Computes kRows rows of C, beginning with `row`.
template <std::size_t kRows, std::size_t kVectors, bool kTransposed, class T>
HWY_INLINE void multiply_rows(const PanelProduct<T>& product, std::size_t row) {
  const hn::ScalableTag<T> d;
  using Vector = hn::Vec<decltype(d)>;
  constexpr std::size_t kLanes = HWY_LANES(T);
  const std::size_t a_step = product.a_step;
  const std::size_t b_step = product.b_step;
  const std::size_t c_step = product.c_step;
  T* c = product.c + row * c_step;
  Vector sums[kRows][kVectors];
  const auto columns_of = [&](std::size_t v) { return v + 1 < kVectors ? kLanes : product.columns - v * kLanes; };
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[i][v] = product.add ? load(d, c + i * c_step + v * kLanes, columns_of(v)) : hn::Zero(d);
    }
  }
  const T* panel = product.a + (kTransposed ? row : row * a_step);
  const T* b = product.b;
  const std::size_t columns = product.a_columns == 0 ? product.depth : product.a_columns;
  for (std::size_t first = 0; first < product.depth; first += columns, panel += product.a_panel) {
    const std::size_t count = std::min(columns, product.depth - first);
    const T* a = panel;
    for (std::size_t k = 0; k < count; ++k) {
      Vector b_row[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v) b_row[v] = hn::LoadU(d, b + v * kLanes);
      for (std::size_t i = 0; i < kRows; ++i) {
        const Vector element = hn::Set(d, a[kTransposed ? i : i * a_step]);
        for (std::size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(element, b_row[v], sums[i][v]);
      }
      a += kTransposed ? a_step : 1;
      b += b_step;
    }
  }
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t v = 0; v < kVectors; ++v) store(d, sums[i][v], c + i * c_step + v * kLanes, columns_of(v));
  }
}

/// Computes the rows of C from `row` on, kRows at a time, then the rest by half as many.
template <std::size_t kRows, std::size_t kVectors, bool kTransposed, class T>
void multiply_rows_from(const PanelProduct<T>& product, std::size_t row) {
  for (; row + kRows <= product.rows; row += kRows) multiply_rows<kRows, kVectors, kTransposed>(product, row);
  if constexpr (kRows > 1) multiply_rows_from<kRows / 2, kVectors, kTransposed>(product, row);
}

template <bool kTransposed, class T>
HWY_INLINE void multiply_panel(const PanelProduct<T>& product) {
  switch (pieces(product.columns, HWY_LANES(T))) {
    case 1: return multiply_rows_from<kSums, 1, kTransposed>(product, 0);
    case 2: return multiply_rows_from<kSums / 2, 2, kTransposed>(product, 0);
    default: return multiply_rows_from<kSums / 3, 3, kTransposed>(product, 0);
  }
}

template <class T>
HWY_INLINE void multiply_any(const PanelProduct<T>& product) {
  if (product.a_transposed) {
    multiply_panel<true>(product);
  } else {
    multiply_panel<false>(product);
  }
}

/// Rows that packing looks ahead, and a cache to fetch into.
constexpr std::size_t kAhead = 16;
constexpr int kSecondCache = 2;

/// Asks for the row that will be packed kAhead rows later. Rows of a view are often a page apart, which hardware prefetchers
/// don't cross.
template <class From>
HWY_INLINE void look_ahead(const From* from, std::size_t row, std::size_t rows, std::size_t columns, std::size_t step) {
  if (rows - row <= kAhead) return;
  for (std::size_t c = 0; c < columns; c += kLine / sizeof(From)) __builtin_prefetch(from + kAhead * step + c, 0, kSecondCache);
}

template <class T, class From>
HWY_INLINE void pack(T* to, std::size_t width, const From* from, std::size_t rows, std::size_t columns, std::size_t step) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t row = 0; row < rows; ++row, from += step) {
    look_ahead(from, row, rows, columns, step);
    T* at = to + row * width;
    for (std::size_t first = 0; first < columns; first += width, at += rows * width) {
      for (std::size_t i = 0; i < width; i += lanes) {
        const std::size_t left = columns - std::min(columns, first + i);
        __builtin_prefetch(at + kAhead * width + i, 1, kSecondCache);  // so many panels at once aren't foreseen
        store(d, load(d, from + first + i, std::min(left, lanes)), at + i, lanes);
      }
    }
  }
}

/// Packs the transpose of a view, in bands of rows that fill cache lines of the panel: so each line is written once, and the
/// bands are read row by row.
template <class T, class From>
HWY_INLINE void pack_turned(T* to, std::size_t width, const From* from, std::size_t rows, std::size_t columns, std::size_t step) {
  constexpr std::size_t kBand = kLine / sizeof(T);
  for (std::size_t first = 0; first < rows; first += width, to += columns * width) {
    const std::size_t count = std::min(width, rows - first);
    if (count < width) std::fill_n(to, columns * width, T{0});
    for (std::size_t band = 0; band < count; band += kBand) {
      const std::size_t end = std::min(count, band + kBand);
      const From* at = from + (first + band) * step;
      for (std::size_t row = band; row < end; ++row) look_ahead(at + (row - band) * step, first + row, rows, columns, step);
      const std::size_t squares = (end - band) / kSquare<T> * kSquare<T>;
      std::size_t c = 0;
      for (; c + kSquare<T> <= columns; c += kSquare<T>) {
        for (std::size_t r = 0; r < squares; r += kSquare<T>)
          transpose_square(to + c * width + band + r, width, at + r * step + c, step);
      }
      for (std::size_t r = 0; r < end - band; ++r) {
        for (std::size_t left = r < squares ? c : 0; left < columns; ++left) {
          to[left * width + band + r] = widened(at[r * step + left]);
        }
      }
    }
  }
}

/// Returns whether all values are finite: zero times a finite number is zero, and zero times infinity or NaN is NaN.
template <class T>
HWY_INLINE bool all_numbers(const T* values, std::size_t count) {
  const hn::ScalableTag<T> d;
  const auto zero = hn::Zero(d);
  auto sum = zero;
  kernels::HWY_NAMESPACE::for_lanes(
      d, count, [&](std::size_t i, std::size_t n) HWY_ATTR { sum = hn::MulAdd(load(d, values + i, n), zero, sum); });
  return hn::AllTrue(d, hn::Eq(sum, zero));
}

bool all_finite_f32(const float* values, std::size_t count) { return all_numbers(values, count); }
bool all_finite_f64(const double* values, std::size_t count) { return all_numbers(values, count); }
void multiply_f32(const PanelProduct<float>& product) { multiply_any(product); }
void multiply_f64(const PanelProduct<double>& product) { multiply_any(product); }
std::size_t bytes_of_vector() { return hn::Lanes(hn::ScalableTag<std::uint8_t>()); }

template <class T>
HWY_INLINE void pack_view(T* to, std::size_t width, const ConstTensor& view, bool transposed) {
  const auto of = [&](const auto* from) HWY_ATTR {
    if (transposed) {
      pack_turned(to, width, from, view.size(0), view.size(1), view.stride(0));
    } else {
      pack(to, width, from, view.size(0), view.size(1), view.stride(0));
    }
  };
  if constexpr (sizeof(T) == 4) {
    if (view.dtype() == DType::bf16) return of(view.as<bf16>());
  }
  of(view.as<T>());
}
void pack_f32(float* to, std::size_t width, const ConstTensor& view, bool transposed) { pack_view(to, width, view, transposed); }
void pack_f64(double* to, std::size_t width, const ConstTensor& view, bool transposed) { pack_view(to, width, view, transposed); }

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels::flash
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels::flash {

HWY_EXPORT(all_finite_f32);
HWY_EXPORT(all_finite_f64);
HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);
HWY_EXPORT(bytes_of_vector);
HWY_EXPORT(pack_f32);
HWY_EXPORT(pack_f64);

bool all_finite(const float* values, std::size_t count) { return HWY_DYNAMIC_DISPATCH(all_finite_f32)(values, count); }
bool all_finite(const double* values, std::size_t count) { return HWY_DYNAMIC_DISPATCH(all_finite_f64)(values, count); }
void multiply(const PanelProduct<float>& product) { HWY_DYNAMIC_DISPATCH(multiply_f32)(product); }
void multiply(const PanelProduct<double>& product) { HWY_DYNAMIC_DISPATCH(multiply_f64)(product); }
std::size_t vector_bytes() { return HWY_DYNAMIC_DISPATCH(bytes_of_vector)(); }
void pack_panels(float* to, std::size_t width, const ConstTensor& view) {
  HWY_DYNAMIC_DISPATCH(pack_f32)(to, width, view, false);
}
void pack_panels(double* to, std::size_t width, const ConstTensor& view) {
  HWY_DYNAMIC_DISPATCH(pack_f64)(to, width, view, false);
}
void pack_transposed(float* to, std::size_t width, const ConstTensor& view) {
  HWY_DYNAMIC_DISPATCH(pack_f32)(to, width, view, true);
}
void pack_transposed(double* to, std::size_t width, const ConstTensor& view) {
  HWY_DYNAMIC_DISPATCH(pack_f64)(to, width, view, true);
}

}  // namespace tsprun::detail::kernels::flash

#endif  // HWY_ONCE
