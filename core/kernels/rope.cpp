// RoPE: one rotation per pair of elements, vectorised over pairs.
#include "core/kernels/rope.h"

#include "core/kernels/check.h"

#include <cmath>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/rope.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

template <class T>
void rotate_typed(const Row& x, const ConstRow& table, std::size_t half, bool inverse) {
  const hn::ScalableTag<T> d;
  const auto sign = hn::Set(d, inverse ? T{-1} : T{1});
  for_lanes(d, half, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto cosine = load(d, table, i, n);
    const auto sine = hn::Mul(sign, load(d, table, half + i, n));
    const auto a = load(d, ConstRow(x), i, n);
    const auto b = load(d, ConstRow(x), half + i, n);
    store(d, hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), x, i, n);
    store(d, hn::MulAdd(b, cosine, hn::Mul(a, sine)), x, half + i, n);
  });
}

void rotate(const Row& x, const ConstRow& table, std::size_t half, bool inverse) {
  x.dtype == DType::f64 ? rotate_typed<double>(x, table, half, inverse) : rotate_typed<float>(x, table, half, inverse);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(rotate);

void rope_table(const Compute& on, const Tensor& table, std::span<const std::int64_t> positions,
                std::span<const double> frequencies) {
  require(table.dims() == 2 && dense_rows(table) && (table.dtype() == DType::f32 || table.dtype() == DType::f64), "rope_table",
          "the table must be [S, d] of f32 or f64", table);
  require(table.size(0) == positions.size(), "rope_table", "the table must have a row for each position", table);
  const std::size_t half = frequencies.size();
  require(table.size(1) == 2 * half, "rope_table", "the head dim must be twice the number of frequencies", table);
  for_rows(on, table.size(0), 64 * table.size(1), [&](std::size_t first, std::size_t end) {
    for (std::size_t row = first; row < end; ++row) {
      const Row out = row_of(table, row);
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[row]) * frequencies[i];
        set_element(out, i, std::cos(angle));
        set_element(out, half + i, std::sin(angle));
      }
    }
  });
}

void rope(const Compute& on, const Tensor& x, const ConstTensor& table, Rotation rotation) {
  require(x.dims() == 4 && dense_rows(x) && computes(x.dtype()) && x.size(3) % 2 == 0, "rope",
          "x must be [B, S, n, d] of a float type, d even", x);
  require(table.dims() == 2 && table.size(0) == x.size(1) && table.size(1) == x.size(3) && dense_rows(table) &&
              table.dtype() == summed_in(x.dtype()),
          "rope", "the table must be [S, d] of the type of sums", table);
  if (x.empty()) return;
  for_rows(on, row_count(x), x.size(3), [&](std::size_t first, std::size_t end) {
    for (std::size_t row = first; row < end; ++row) {
      const std::size_t token = row / x.size(2) % x.size(1);
      HWY_DYNAMIC_DISPATCH(rotate)(row_of(x, row), row_of(table, token), x.size(3) / 2, rotation == Rotation::inverse);
    }
  });
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
