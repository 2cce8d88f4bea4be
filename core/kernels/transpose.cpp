// Transposes squares of 16 bytes' width in registers, and bands of rows, so that each line of the result is written once.
#include "core/kernels/transpose.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/transpose.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

template <class T>
void transpose_typed(T* to, std::size_t to_step, const T* from, std::size_t step, std::size_t rows, std::size_t columns) {
  constexpr std::size_t kBand = 64 / sizeof(T);  // rows that fill a cache line of the result
  for (std::size_t top = 0; top < rows; top += kBand) {
    const std::size_t bottom = std::min(top + kBand, rows);
    for (std::size_t left = 0; left < columns; left += kSquare<T>) {
      const std::size_t right = std::min(left + kSquare<T>, columns);
      std::size_t row = top;
      if (right - left == kSquare<T>) {
        for (; row + kSquare<T> <= bottom; row += kSquare<T>)
          transpose_square(to + left * to_step + row, to_step, from + row * step + left, step);
      }
      for (std::size_t column = left; column < right; ++column) {
        for (std::size_t i = row; i < bottom; ++i) to[column * to_step + i] = from[i * step + column];
      }
    }
  }
}

void transpose_elements(const Tensor& to, const ConstTensor& from) {
  const auto as = [&](auto element) {
    using T = decltype(element);
    transpose_typed(reinterpret_cast<T*>(to.data()), to.stride(0), reinterpret_cast<const T*>(from.data()), from.stride(0),
                    from.size(0), from.size(1));
  };
  switch (from.dtype()) {
    case DType::f64: return as(double{});
    case DType::bf16: return as(std::uint16_t{});
    default: return as(float{});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(transpose_elements);

void transpose(const Tensor& to, const ConstTensor& from) {
  require(from.dims() == 2 && dense_rows(from) && computes(from.dtype()), "transpose",
          "the view must be [n, m] with dense rows of a float type", from);
  require(
      to.dims() == 2 && dense_rows(to) && to.dtype() == from.dtype() && to.size(0) == from.size(1) && to.size(1) == from.size(0),
      "transpose", "the result must be [m, n] with dense rows of the same type", to);
  if (!from.empty()) HWY_DYNAMIC_DISPATCH(transpose_elements)(to, from);
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
