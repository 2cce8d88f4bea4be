// Row loops over tiles of scores.
#include "core/kernels/flash_rows.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/flash_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include "core/kernels/exp-inl.h"

#ifndef TSP_KERNELS_FLASH_HIDDEN
#define TSP_KERNELS_FLASH_HIDDEN
namespace tsp::kernels::flash {
/// How many queries, counted from the first, don't see key j.
inline std::size_t hidden(std::size_t j, std::ptrdiff_t diagonal, std::size_t queries) {
  return static_cast<std::size_t>(
      std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(j) + diagonal, 0, static_cast<std::ptrdiff_t>(queries)));
}
}  // namespace tsp::kernels::flash
#endif

HWY_BEFORE_NAMESPACE();
namespace tsp::kernels::flash {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::HWY_NAMESPACE::for_lanes;
using kernels::HWY_NAMESPACE::load;
using kernels::HWY_NAMESPACE::power;
using kernels::HWY_NAMESPACE::store;

/// maximum[i] = max(maximum[i], scores[0][i], …, scores[kRows − 1][i]).
template <std::size_t kRows, class T>
HWY_INLINE void take_maximum(const T* scores, std::size_t step, std::size_t queries, T* maximum) {
  const hn::ScalableTag<T> d;
  for_lanes(d, queries, [&](std::size_t i, std::size_t n) HWY_ATTR {
    auto highest = load(d, maximum + i, n);
    for (std::size_t r = 0; r < kRows; ++r) highest = hn::Max(highest, load(d, scores + r * step + i, n));
    store(d, highest, maximum + i, n);
  });
}

/// scores = power(scale·scores − finite maximum); their sum over the rows is added to `sum`.
template <std::size_t kRows, class T>
HWY_INLINE void take_powers(T* scores, std::size_t step, std::size_t queries, T scale, const T* maximum, T* sum) {
  const hn::ScalableTag<T> d;
  const auto by = hn::Set(d, scale);
  const auto minus_infinity = hn::Set(d, -std::numeric_limits<T>::infinity());
  for_lanes(d, queries, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto highest = load(d, maximum + i, n);
    // Where nothing was seen yet, (−∞) − (−∞) must not become NaN.
    const auto finite = hn::IfThenZeroElse(hn::Eq(highest, minus_infinity), highest);
    auto total = load(d, sum + i, n);
    for (std::size_t r = 0; r < kRows; ++r) {
      T* row = scores + r * step;
      const auto p = power(d, hn::MulSub(by, load(d, row + i, n), finite));
      store(d, p, row + i, n);
      total = hn::Add(total, p);
    }
    store(d, total, sum + i, n);
  });
}

template <class T>
void softmax(const SoftmaxTile<T>& tile) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  constexpr std::size_t kRows = 4;  // per load and store of the maxima and sums
  const hn::ScalableTag<T> d;
  const auto scale = static_cast<T>(static_cast<double>(tile.scale) / kExponentUnit<T>);
  const auto by = hn::Set(d, scale);
  const auto minus_infinity = hn::Set(d, -kInfinity);
  for (std::size_t j = 0; j < tile.keys; ++j) {
    std::fill_n(tile.scores + j * tile.step, hidden(j, tile.diagonal, tile.queries), -kInfinity);
  }
  // `factor` holds the maxima of this tile until the new ones of all tiles are known.
  std::fill_n(tile.factor, tile.queries, -kInfinity);
  std::size_t j = 0;
  for (; j + kRows <= tile.keys; j += kRows)
    take_maximum<kRows>(tile.scores + j * tile.step, tile.step, tile.queries, tile.factor);
  for (; j < tile.keys; ++j) take_maximum<1>(tile.scores + j * tile.step, tile.step, tile.queries, tile.factor);
  for_lanes(d, tile.queries, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto before = load(d, tile.maximum + i, n);
    const auto now = hn::Max(before, hn::Mul(by, load(d, tile.factor + i, n)));
    const auto factor = power(d, hn::Sub(before, hn::IfThenZeroElse(hn::Eq(now, minus_infinity), now)));
    store(d, now, tile.maximum + i, n);
    store(d, factor, tile.factor + i, n);
    store(d, hn::Mul(factor, load(d, tile.sum + i, n)), tile.sum + i, n);
  });
  for (j = 0; j + kRows <= tile.keys; j += kRows) {
    take_powers<kRows>(tile.scores + j * tile.step, tile.step, tile.queries, scale, tile.maximum, tile.sum);
  }
  for (; j < tile.keys; ++j) take_powers<1>(tile.scores + j * tile.step, tile.step, tile.queries, scale, tile.maximum, tile.sum);
}

template <class T>
void gradients(const GradientTile<T>& tile) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, tile.scale);
  const auto by = hn::Set(d, static_cast<T>(static_cast<double>(tile.scale) / kExponentUnit<T>));
  const auto per_unit = hn::Set(d, static_cast<T>(1 / kExponentUnit<T>));
  for (std::size_t j = 0; j < tile.keys; ++j) {
    const std::size_t skip = hidden(j, tile.diagonal, tile.queries);
    T* p_row = tile.p + j * tile.step;
    T* ds_row = tile.ds + j * tile.step;
    std::fill_n(p_row, skip, T{0});
    std::fill_n(ds_row, skip, T{0});
    for_lanes(d, tile.queries - skip, [&](std::size_t at, std::size_t n) HWY_ATTR {
      const std::size_t i = skip + at;
      const auto shift = hn::Mul(per_unit, load(d, tile.lse + i, n));
      const auto p = power(d, hn::MulSub(by, load(d, p_row + i, n), shift));
      const auto ds = hn::Mul(hn::Mul(scale, p), hn::Sub(load(d, ds_row + i, n), load(d, tile.delta + i, n)));
      store(d, p, p_row + i, n);
      store(d, ds, ds_row + i, n);
    });
  }
}

template <class T>
void multiply_rows(T* rows, std::size_t count, std::size_t width, std::size_t step, const T* factors) {
  const hn::ScalableTag<T> d;
  for (std::size_t row = 0; row < count; ++row) {
    if (factors[row] == T{1}) continue;
    const auto factor = hn::Set(d, factors[row]);
    T* at = rows + row * step;
    for_lanes(d, width, [&](std::size_t i, std::size_t n) HWY_ATTR { store(d, hn::Mul(factor, load(d, at + i, n)), at + i, n); });
  }
}

void softmax_f32(const SoftmaxTile<float>& tile) { softmax(tile); }
void softmax_f64(const SoftmaxTile<double>& tile) { softmax(tile); }
void gradients_f32(const GradientTile<float>& tile) { gradients(tile); }
void gradients_f64(const GradientTile<double>& tile) { gradients(tile); }
void multiply_rows_f32(float* rows, std::size_t count, std::size_t width, std::size_t step, const float* factors) {
  multiply_rows(rows, count, width, step, factors);
}
void multiply_rows_f64(double* rows, std::size_t count, std::size_t width, std::size_t step, const double* factors) {
  multiply_rows(rows, count, width, step, factors);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsp::kernels::flash
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsp::kernels::flash {

HWY_EXPORT(softmax_f32);
HWY_EXPORT(softmax_f64);
HWY_EXPORT(gradients_f32);
HWY_EXPORT(gradients_f64);
HWY_EXPORT(multiply_rows_f32);
HWY_EXPORT(multiply_rows_f64);

void online_softmax(const SoftmaxTile<float>& tile) { HWY_DYNAMIC_DISPATCH(softmax_f32)(tile); }
void online_softmax(const SoftmaxTile<double>& tile) { HWY_DYNAMIC_DISPATCH(softmax_f64)(tile); }
void score_gradients(const GradientTile<float>& tile) { HWY_DYNAMIC_DISPATCH(gradients_f32)(tile); }
void score_gradients(const GradientTile<double>& tile) { HWY_DYNAMIC_DISPATCH(gradients_f64)(tile); }
void scale_rows(float* rows, std::size_t count, std::size_t width, std::size_t step, const float* factors) {
  HWY_DYNAMIC_DISPATCH(multiply_rows_f32)(rows, count, width, step, factors);
}
void scale_rows(double* rows, std::size_t count, std::size_t width, std::size_t step, const double* factors) {
  HWY_DYNAMIC_DISPATCH(multiply_rows_f64)(rows, count, width, step, factors);
}

}  // namespace tsp::kernels::flash

#endif  // HWY_ONCE
