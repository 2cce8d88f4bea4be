// Vectorised loops over the rows of a tile of scores.
#include "core/kernels/flash_rows.h"

#include <algorithm>
#include <limits>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/flash_rows.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/exp-inl.h"

#ifndef TSP_KERNELS_FLASH_WITHIN
#define TSP_KERNELS_FLASH_WITHIN
namespace tsprun::detail::kernels::flash {
/// Returns `value` clamped to 0 … most.
inline std::size_t within(std::ptrdiff_t value, std::size_t most) {
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(value, 0, static_cast<std::ptrdiff_t>(most)));
}
/// Returns the first key, at most `most`, that documents leave to query i.
inline std::size_t first_of_document(const DocumentStarts& documents, std::size_t i, std::size_t most) {
  return within(static_cast<std::ptrdiff_t>(documents.queries[i]) - static_cast<std::ptrdiff_t>(documents.key), most);
}
/// Returns the end of the run of equal numbers that begins with number `begin`.
inline std::size_t end_of_run(std::span<const std::uint32_t> numbers, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end < numbers.size() && numbers[end] == numbers[begin]) ++end;
  return end;
}
}  // namespace tsprun::detail::kernels::flash
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels::flash {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::HWY_NAMESPACE::for_lanes;
using kernels::HWY_NAMESPACE::load;
using kernels::HWY_NAMESPACE::power;
using kernels::HWY_NAMESPACE::store;
using kernels::HWY_NAMESPACE::tanh_of_finite;

/// Replaces q·k by bound·tanh(q·k / bound).
template <class T>
void cap_scores(const SoftmaxTile<T>& tile) {
  const hn::ScalableTag<T> d;
  const auto bound = hn::Set(d, tile.bound);
  const auto inverse = hn::Set(d, T{1} / tile.bound);
  for (std::size_t j = 0; j < tile.keys; ++j) {
    T* row = tile.scores + j * tile.step;
    for (std::size_t i = 0; i < tile.queries; i += hn::Lanes(d))
      hn::StoreU(hn::Mul(bound, tanh_of_finite(d, hn::Mul(inverse, hn::LoadU(d, row + i)))), d, row + i);
  }
}

/// Hides the keys of other documents than a query's: for each run of queries that have the same, whole stretches of a key's row.
template <class T>
void hide_dealt(const SoftmaxTile<T>& tile) {
  const DealtDocuments& dealt = tile.dealt;
  for (std::size_t end = 0; end < dealt.queries.size();) {
    const std::size_t begin = end;
    end = end_of_run(dealt.queries, begin);
    for (std::size_t j = 0; j < tile.keys; ++j) {
      T* row = tile.scores + j * tile.step;
      if (dealt.keys[j] != dealt.queries[begin]) std::fill(row + begin, row + end, -std::numeric_limits<T>::infinity());
      else if (dealt.window > 0)
        for (std::size_t i = begin; i < end; ++i) {
          if (dealt.hides(i, j)) row[i] = -std::numeric_limits<T>::infinity();
        }
    }
  }
}

/// Makes P and dS of other documents' keys zero.
template <class T>
void zero_dealt(const GradientTile<T>& tile) {
  const DealtDocuments& dealt = tile.dealt;
  for (std::size_t end = 0; end < dealt.keys.size();) {
    const std::size_t begin = end;
    end = end_of_run(dealt.keys, begin);
    for (std::size_t i = 0; i < tile.queries; ++i) {
      for (T* row : {tile.p + i * tile.step, tile.ds + i * tile.step}) {
        if (dealt.queries[i] != dealt.keys[begin]) std::fill(row + begin, row + end, T{0});
        else if (dealt.window > 0)
          for (std::size_t j = begin; j < end; ++j) {
            if (dealt.hides(i, j)) row[j] = T{0};
          }
      }
    }
  }
}

/// Processes one vector of queries at a time, whose maxima and sums stay in registers over all keys.
template <class T>
void softmax(const SoftmaxTile<T>& tile) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const hn::ScalableTag<T> d;
  const auto by = hn::Set(d, static_cast<T>(static_cast<double>(tile.scale) / kExponentUnit<T>));
  if (tile.bound > 0) cap_scores(tile);
  // Key j is hidden from the first j + diagonal queries, and from those from j + diagonal + window on.
  for (std::size_t j = within(1 - tile.diagonal, tile.keys); j < tile.keys; ++j) {
    std::fill_n(tile.scores + j * tile.step, within(static_cast<std::ptrdiff_t>(j) + tile.diagonal, tile.queries), -kInfinity);
  }
  const std::ptrdiff_t beyond = tile.diagonal + tile.window;
  for (std::size_t j = 0; j < within(static_cast<std::ptrdiff_t>(tile.queries) - beyond, tile.keys); ++j) {
    const std::size_t seen = within(static_cast<std::ptrdiff_t>(j) + beyond, tile.queries);
    std::fill_n(tile.scores + j * tile.step + seen, tile.queries - seen, -kInfinity);
  }
  const std::span<const std::uint32_t> starts = tile.documents.queries;
  for (std::size_t j = 0, seen = 0; j < tile.keys; ++j) {
    while (seen < starts.size() && starts[seen] <= tile.documents.key + j) ++seen;
    if (seen == starts.size()) break;
    std::fill_n(tile.scores + j * tile.step + seen, tile.queries - seen, -kInfinity);
  }
  if (tile.dealt.any()) hide_dealt(tile);
  for (std::size_t i = 0; i < tile.queries; i += hn::Lanes(d)) {
    T* scores = tile.scores + i;
    const auto before = hn::LoadU(d, tile.maximum + i);
    auto highest = before;
    for (std::size_t j = 0; j < tile.keys; ++j) highest = hn::Max(highest, hn::LoadU(d, scores + j * tile.step));
    // The maximum is subtracted before scaling: the difference of two numbers that are close together is exact, however large
    // they are. A score of 10⁹ that is scaled first would be rounded by 32.
    const auto factor = power(d, hn::Mul(by, hn::Sub(before, highest)));
    auto sum = hn::Mul(factor, hn::LoadU(d, tile.sum + i));
    for (std::size_t j = 0; j < tile.keys; ++j) {
      const auto p = power(d, hn::Mul(by, hn::Sub(hn::LoadU(d, scores + j * tile.step), highest)));
      hn::StoreU(p, d, scores + j * tile.step);
      sum = hn::Add(sum, p);
    }
    hn::StoreU(highest, d, tile.maximum + i);
    hn::StoreU(factor, d, tile.factor + i);
    hn::StoreU(sum, d, tile.sum + i);
  }
}

template <bool kCapped, class T>
void gradients(const GradientTile<T>& tile) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, tile.scale);
  const auto by = hn::Set(d, static_cast<T>(static_cast<double>(tile.scale) / kExponentUnit<T>));
  for (std::size_t i = 0; i < tile.queries; ++i) {
    T* p_row = tile.p + i * tile.step;
    T* ds_row = tile.ds + i * tile.step;
    const auto maximum = hn::Set(d, tile.maximum[i]);
    const auto log_sum = hn::Set(d, static_cast<T>(static_cast<double>(tile.log_sum[i]) / kExponentUnit<T>));
    const auto delta = hn::Set(d, tile.delta[i]);
    for (std::size_t j = 0; j < tile.keys; j += hn::Lanes(d)) {
      auto u = hn::LoadU(d, p_row + j);
      auto slope = scale;
      if constexpr (kCapped) {
        const auto bound = hn::Set(d, tile.bound);
        const auto tanh = tanh_of_finite(d, hn::Mul(hn::Set(d, T{1} / tile.bound), u));
        u = hn::Mul(bound, tanh);
        slope = hn::Mul(scale, hn::NegMulAdd(tanh, tanh, hn::Set(d, T{1})));
      }
      const auto p = power(d, hn::MulSub(by, hn::Sub(u, maximum), log_sum));
      hn::StoreU(p, d, p_row + j);
      hn::StoreU(hn::Mul(hn::Mul(slope, p), hn::Sub(hn::LoadU(d, ds_row + j), delta)), d, ds_row + j);
    }
    const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(i) - tile.diagonal;  // key of the query's own position
    std::size_t first = within(last + 1 - tile.window, tile.keys);
    if (!tile.documents.queries.empty()) first = std::max(first, first_of_document(tile.documents, i, tile.keys));
    const std::size_t seen = within(last + 1, tile.keys);
    for (T* row : {p_row, ds_row}) {
      std::fill(row, row + first, T{0});
      std::fill(row + seen, row + tile.keys, T{0});
    }
  }
}
template <class T>
void gradients(const GradientTile<T>& tile) {
  tile.bound > 0 ? gradients<true>(tile) : gradients<false>(tile);
  if (tile.dealt.any()) zero_dealt(tile);
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
}  // namespace tsprun::detail::kernels::flash
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels::flash {

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

}  // namespace tsprun::detail::kernels::flash

#endif  // HWY_ONCE
