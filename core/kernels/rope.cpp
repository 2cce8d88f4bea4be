// RoPE: one rotation per pair of elements, vectorised over pairs. Neighbours are taken apart by way of memory, whatever their
// type.
#include "core/kernels/rope.h"

#include "core/kernels/check.h"

#include <algorithm>
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
void rotate_halves(const Row& x, const ConstRow& table, std::size_t half, bool transposed) {
  const hn::ScalableTag<T> d;
  const auto sign = hn::Set(d, transposed ? T{-1} : T{1});
  for_lanes(d, half, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto cosine = load(d, table, i, n);
    const auto sine = hn::Mul(sign, load(d, table, half + i, n));
    const auto a = load(d, ConstRow(x), i, n);
    const auto b = load(d, ConstRow(x), half + i, n);
    store(d, hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), x, i, n);
    store(d, hn::MulAdd(b, cosine, hn::Mul(a, sine)), x, half + i, n);
  });
}

template <class T>
void rotate_neighbours(const Row& x, const ConstRow& table, std::size_t half, bool transposed) {
  const hn::ScalableTag<T> d;
  const auto sign = hn::Set(d, transposed ? T{-1} : T{1});
  const std::size_t lanes = hn::Lanes(d);
  alignas(64) T both[2 * HWY_LANES(T)];  // some pairs, in the type of sums
  for_lanes(d, half, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const std::size_t first = std::min(2 * n, lanes);
    const std::size_t rest = 2 * n - first;
    hn::StoreU(load(d, ConstRow(x), 2 * i, first), d, both);
    hn::StoreU(load(d, ConstRow(x), 2 * i + first, rest), d, both + lanes);
    hn::Vec<decltype(d)> a;
    hn::Vec<decltype(d)> b;
    hn::LoadInterleaved2(d, both, a, b);
    const auto cosine = load(d, table, i, n);
    const auto sine = hn::Mul(sign, load(d, table, half + i, n));
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), hn::MulAdd(b, cosine, hn::Mul(a, sine)), d, both);
    store(d, hn::LoadU(d, both), x, 2 * i, first);
    store(d, hn::LoadU(d, both + lanes), x, 2 * i + first, rest);
  });
}

void rotate(const Row& x, const ConstRow& table, std::size_t half, bool transposed, bool neighbours) {
  const bool wide = x.dtype == DType::f64;
  if (neighbours)
    wide ? rotate_neighbours<double>(x, table, half, transposed) : rotate_neighbours<float>(x, table, half, transposed);
  else wide ? rotate_halves<double>(x, table, half, transposed) : rotate_halves<float>(x, table, half, transposed);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(rotate);

void rope_table(const Compute& on, const Tensor& table, std::span<const std::int64_t> positions,
                std::span<const double> frequencies, std::span<const double> factors) {
  require(table.dims() == 2 && dense_rows(table) && (table.dtype() == DType::f32 || table.dtype() == DType::f64), "rope_table",
          "the table must be [S, r] of f32 or f64", table);
  require(table.size(0) == positions.size(), "rope_table", "the table must have a row for each position", table);
  require(factors.empty() || factors.size() == positions.size(), "rope_table", "there must be a factor for each position", table);
  const std::size_t half = frequencies.size();
  require(table.size(1) == 2 * half, "rope_table", "the table must be twice as wide as there are frequencies", table);
  for_rows(on, table.size(0), 64 * table.size(1), [&](std::size_t first, std::size_t end) {
    for (std::size_t row = first; row < end; ++row) {
      const Row out = row_of(table, row);
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[row]) * frequencies[i];
        const double factor = factors.empty() ? 1 : factors[row];
        set_element(out, i, factor * std::cos(angle));
        set_element(out, half + i, factor * std::sin(angle));
      }
    }
  });
}

void rope(const Compute& on, const Tensor& x, const ConstTensor& table, Rotation rotation, RotaryPairs pairs,
          std::span<const std::uint32_t> rows) {
  require(x.dims() == 4 && dense_rows(x) && computes(x.dtype()), "rope", "x must be [B, S, n, d] of a float type", x);
  require(table.dims() == 2 && table.size(1) <= x.size(3) && table.size(1) % 2 == 0 && dense_rows(table) &&
              table.dtype() == summed_in(x.dtype()),
          "rope", "the table must be [S, r] of the type of sums, r even and at most d", table);
  if (x.empty()) return;
  require(
      rows.empty() ? table.size(0) == x.size(1) : rows.size() == x.size(0) * x.size(1) && std::ranges::max(rows) < table.size(0),
      "rope", "the table must have a row for each token", table);
  for_rows(on, row_count(x), x.size(3), [&](std::size_t first, std::size_t end) {
    for (std::size_t row = first; row < end; ++row) {
      const std::size_t token = row / x.size(2);
      HWY_DYNAMIC_DISPATCH(rotate)
      (row_of(x, row), row_of(table, rows.empty() ? token % x.size(1) : rows[token]), table.size(1) / 2,
       rotation == Rotation::transposed, pairs == RotaryPairs::neighbours);
    }
  });
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
