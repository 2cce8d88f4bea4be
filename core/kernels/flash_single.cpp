// Online softmax over tiles of keys: scores by dots of a key's row with each query, outputs by sums of value rows.
#include "core/kernels/flash_single.h"

#include "core/kernels/elementwise.h"
#include "core/kernels/flash_rows.h"
#include "core/kernels/flash_tiles.h"

#include <algorithm>
#include <limits>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/flash_single.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/exp-inl.h"

#ifndef TSP_KERNELS_FLASH_SINGLE_TYPES
#define TSP_KERNELS_FLASH_SINGLE_TYPES
namespace tsprun::detail::kernels::flash {
namespace {

/// Keys of a tile.
constexpr std::size_t kSingleKeys = 256;

/// Query heads that share keys and values, and their running state. T: the type of sums.
template <class T>
struct Single {
  std::size_t queries = 0;
  std::size_t head_dim = 0;
  double scale = 1;
  double bound = 0;     // of a soft cap, in units of q·k; 0: none
  T* q = nullptr;       // [queries, d]
  T* scores = nullptr;  // [queries, kSingleKeys]
  T* o = nullptr;       // [queries, d], not divided by the sum yet
  T* maximum = nullptr;
  T* sum = nullptr;

  Single(Carver& carver, std::size_t count, std::size_t d) : queries(count), head_dim(d) {
    q = carver.take<T>(count * d);
    scores = carver.take<T>(count * kSingleKeys);
    o = carver.take<T>(count * d);
    maximum = carver.take<T>(count);
    sum = carver.take<T>(count);
  }
};

/// Keys and values of a tile, in T or bf16.
struct SingleTile {
  std::size_t keys = 0;
  const std::byte* k = nullptr;
  std::size_t k_step = 0;
  const std::byte* v = nullptr;
  std::size_t v_step = 0;
};

}  // namespace
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
using kernels::HWY_NAMESPACE::sum_of_lanes;
using kernels::HWY_NAMESPACE::Tag;
using kernels::HWY_NAMESPACE::tanh_of_finite;

/// Computes the scores of M queries from `first` on.
template <std::size_t M, class B, class T>
void dot_keys(const Single<T>& of, const SingleTile& tile, std::size_t first) {
  const Tag<B> d;
  const T* q = of.q + first * of.head_dim;
  for (std::size_t key = 0; key < tile.keys; ++key) {
    const B* row = reinterpret_cast<const B*>(tile.k) + key * tile.k_step;
    hn::Vec<decltype(d)> sums[M];
    for (auto& sum : sums) sum = hn::Zero(d);
    for_lanes(d, of.head_dim, [&](std::size_t i, std::size_t count) HWY_ATTR {
      const auto keys = load(d, row + i, count);
      for (std::size_t m = 0; m < M; ++m) sums[m] = hn::MulAdd(keys, load(d, q + m * of.head_dim + i, count), sums[m]);
    });
    for (std::size_t m = 0; m < M; ++m) of.scores[(first + m) * kSingleKeys + key] = sum_of_lanes(d, sums[m]);
  }
}

/// Replaces a query's scores by their exponentials and updates its maximum and sum. Returns the factor of earlier outputs.
template <class T>
T exponentials(const Single<T>& of, std::size_t query, std::size_t keys) {
  const hn::ScalableTag<T> d;
  const auto by = hn::Set(d, static_cast<T>(of.scale / kExponentUnit<T>));
  T* scores = of.scores + query * kSingleKeys;
  const std::size_t padded = round_up(keys, hn::Lanes(d));
  if (of.bound > 0) {
    const auto bound = hn::Set(d, static_cast<T>(of.bound));
    const auto inverse = hn::Set(d, T{1} / static_cast<T>(of.bound));
    for (std::size_t i = 0; i < padded; i += hn::Lanes(d))
      hn::StoreU(hn::Mul(bound, tanh_of_finite(d, hn::Mul(inverse, hn::LoadU(d, scores + i)))), d, scores + i);
  }
  std::fill(scores + keys, scores + padded, -std::numeric_limits<T>::infinity());
  auto highest = hn::Set(d, of.maximum[query]);
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) highest = hn::Max(highest, hn::LoadU(d, scores + i));
  highest = hn::MaxOfLanes(d, highest);
  // The maximum is subtracted before scaling, which keeps differences exact (flash_rows.cpp).
  const T factor = hn::GetLane(power(d, hn::Mul(by, hn::Sub(hn::Set(d, of.maximum[query]), highest))));
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    const auto p = power(d, hn::Mul(by, hn::Sub(hn::LoadU(d, scores + i), highest)));
    hn::StoreU(p, d, scores + i);
    sum = hn::Add(sum, p);
  }
  of.maximum[query] = hn::GetLane(highest);
  of.sum[query] = factor * of.sum[query] + sum_of_lanes(d, sum);
  return factor;
}

/// Adds a tile's values to the outputs of M queries from `first` on, V vectors of the head dim at once.
template <std::size_t M, class B, class T>
void add_values(const Single<T>& of, const SingleTile& tile, std::size_t first, const T* factors) {
  constexpr std::size_t kVectors = 4;
  const Tag<B> d;
  const std::size_t lanes = hn::Lanes(d);
  const B* values = reinterpret_cast<const B*>(tile.v);
  const auto columns = [&]<std::size_t V>(std::size_t at, std::size_t last) HWY_ATTR {
    hn::Vec<decltype(d)> sums[M][V];
    const auto count = [&](std::size_t vector) { return vector + 1 == V ? last : lanes; };
    for (std::size_t m = 0; m < M; ++m) {
      for (std::size_t s = 0; s < V; ++s) {
        const T* o = of.o + (first + m) * of.head_dim + at + s * lanes;
        sums[m][s] = hn::Mul(hn::Set(d, factors[m]), load(d, o, count(s)));
      }
    }
    for (std::size_t key = 0; key < tile.keys; ++key) {
      const B* row = values + key * tile.v_step + at;
      hn::Vec<decltype(d)> v[V];
      for (std::size_t s = 0; s < V; ++s) v[s] = load(d, row + s * lanes, count(s));
      for (std::size_t m = 0; m < M; ++m) {
        const auto p = hn::Set(d, of.scores[(first + m) * kSingleKeys + key]);
        for (std::size_t s = 0; s < V; ++s) sums[m][s] = hn::MulAdd(p, v[s], sums[m][s]);
      }
    }
    for (std::size_t m = 0; m < M; ++m) {
      for (std::size_t s = 0; s < V; ++s) store(d, sums[m][s], of.o + (first + m) * of.head_dim + at + s * lanes, count(s));
    }
  };
  std::size_t at = 0;
  for (; at + kVectors * lanes <= of.head_dim; at += kVectors * lanes) columns.template operator()<kVectors>(at, lanes);
  for (; at < of.head_dim; at += lanes) columns.template operator()<1>(at, std::min(lanes, of.head_dim - at));
}

template <std::size_t M, class B, class T>
void attend_tile(const Single<T>& of, const SingleTile& tile, std::size_t first) {
  dot_keys<M, B>(of, tile, first);
  T factors[M];
  for (std::size_t m = 0; m < M; ++m) factors[m] = exponentials(of, first + m, tile.keys);
  add_values<M, B>(of, tile, first, factors);
}

template <class B, class T>
void attend_all(const Single<T>& of, const SingleTile& tile) {
  std::size_t query = 0;
  for (; query + 4 <= of.queries; query += 4) attend_tile<4, B>(of, tile, query);
  for (; query + 2 <= of.queries; query += 2) attend_tile<2, B>(of, tile, query);
  if (query < of.queries) attend_tile<1, B>(of, tile, query);
}

void attend_f64(const Single<double>& of, const SingleTile& tile) { attend_all<double>(of, tile); }
void attend_f32(const Single<float>& of, const SingleTile& tile) { attend_all<float>(of, tile); }
void attend_bf16(const Single<float>& of, const SingleTile& tile) { attend_all<bf16>(of, tile); }

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels::flash
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels::flash {

HWY_EXPORT(attend_f64);
HWY_EXPORT(attend_f32);
HWY_EXPORT(attend_bf16);

namespace {

template <class T, class Attend>
void attend(const Single<T>& of, const Tensor& o, const Tensor& lse, const ConstTensor& q, const ConstTensor& k,
            const ConstTensor& v, const Attend& attend_tile) {
  const auto matrix = [&](T* data) {
    return Tensor(reinterpret_cast<std::byte*>(data), dtype_of<T>(), {of.queries, of.head_dim});
  };
  convert({}, matrix(of.q), q);
  std::fill_n(of.o, of.queries * of.head_dim, T{0});
  std::fill_n(of.sum, of.queries, T{0});
  std::fill_n(of.maximum, of.queries, std::numeric_limits<T>::lowest());
  for (std::size_t key = 0; key < k.size(0); key += kSingleKeys) {
    const std::size_t keys = std::min(kSingleKeys, k.size(0) - key);
    attend_tile(of, {.keys = keys,
                     .k = k.slice(0, key, keys).data(),
                     .k_step = keys > 1 ? k.stride(0) : 0,
                     .v = v.slice(0, key, keys).data(),
                     .v_step = keys > 1 ? v.stride(0) : 0});
  }
  T* lse_data = lse.template as<T>();
  for (std::size_t i = 0; i < of.queries; ++i) {
    const bool sees = k.size(0) > 0;
    (sees ? LogSumExp<T>::of(of.maximum[i], of.sum[i]) : LogSumExp<T>::of_nothing())
        .store(lse_data + i * lse.stride(0), lse.dims(), of.scale);
    of.sum[i] = sees ? T{1} / of.sum[i] : T{0};
  }
  scale_rows(of.o, of.queries, of.head_dim, of.head_dim, of.sum);
  convert({}, o, matrix(of.o));
}

}  // namespace

std::size_t single_workspace(std::size_t queries, std::size_t head_dim, DType sums) {
  return sums == DType::f64 ? carved_bytes<Single<double>>(queries, head_dim) : carved_bytes<Single<float>>(queries, head_dim);
}

void attend_single(std::span<std::byte> workspace, double scale, double bound, const Tensor& o, const Tensor& lse,
                   const ConstTensor& q, const ConstTensor& k, const ConstTensor& v) {
  Carver carver(workspace);
  if (q.dtype() == DType::f64) {
    Single<double> of(carver, q.size(0), q.size(1));
    of.scale = scale;
    of.bound = bound;
    attend(of, o, lse, q, k, v, [](const auto& single, const SingleTile& tile) {
      HWY_DYNAMIC_DISPATCH(attend_f64)(single, tile);
    });
    return;
  }
  Single<float> of(carver, q.size(0), q.size(1));
  of.scale = scale;
  of.bound = bound;
  attend(of, o, lse, q, k, v, [&](const auto& single, const SingleTile& tile) {
    if (k.dtype() == DType::bf16) HWY_DYNAMIC_DISPATCH(attend_bf16)(single, tile);
    else HWY_DYNAMIC_DISPATCH(attend_f32)(single, tile);
  });
}

}  // namespace tsprun::detail::kernels::flash

#endif  // HWY_ONCE
