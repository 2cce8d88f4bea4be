// Loads of stored elements into vectors and stores back, for source files that are compiled once per vector level (Highway's
// foreach_target).
//
// Arithmetic is in Accumulator<T>: f32 for f32 and bf16, f64 for f64. bf16 is widened when it is loaded and rounded (to nearest,
// ties to even) when it is stored. `count` is at most the number of lanes; lanes beyond it are read as zeros and not written.
// Source files include this header after foreach_target.h, once per target, hence the guard that toggles.
#include <hwy/highway.h>

#include "core/kernels/check.h"
#include "tsprun/types.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifndef TSP_KERNELS_LANES_TYPES
#define TSP_KERNELS_LANES_TYPES
namespace tsprun::detail::kernels {
/// Type in which elements of type T are computed and summed.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
}  // namespace tsprun::detail::kernels
#endif

#if defined(TSP_KERNELS_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TSP_KERNELS_LANES_INL
#undef TSP_KERNELS_LANES_INL
#else
#define TSP_KERNELS_LANES_INL
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<Accumulator<T>>;

template <class D>
HWY_INLINE hn::Vec<D> load_full(D d, const hn::TFromD<D>* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_full(D d, const bf16* from) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::Rebind<std::uint32_t, D> wide;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(from)))));
}

template <class D>
HWY_INLINE void store_full(D d, hn::Vec<D> value, hn::TFromD<D>* to) {
  hn::StoreU(value, d, to);
}
template <class D>
HWY_INLINE void store_full(D /* d */, hn::Vec<D> value, bf16* to) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::Rebind<std::int32_t, D> signed_wide;
  const hn::Rebind<std::uint32_t, D> wide;
  const auto bits = hn::BitCast(wide, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(wide, 0x7fff))));
  // A NaN stays one: rounding could carry its bits out of the mantissa.
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(wide, 0x40));
  const auto chosen = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(value)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(signed_wide, chosen)), narrow, reinterpret_cast<std::uint16_t*>(to));
}

template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from, std::size_t count) {
  if (HWY_LIKELY(count == hn::Lanes(d))) return load_full(d, from);
  alignas(64) T padded[HWY_LANES(hn::TFromD<D>)] = {};
  std::memcpy(static_cast<void*>(padded), from, HWY_MIN(count, hn::Lanes(d)) * sizeof(T));
  return load_full(d, padded);
}

template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> value, T* to, std::size_t count) {
  if (HWY_LIKELY(count == hn::Lanes(d))) return store_full(d, value, to);
  alignas(64) T padded[HWY_LANES(hn::TFromD<D>)];
  store_full(d, value, padded);
  std::memcpy(static_cast<void*>(to), padded, HWY_MIN(count, hn::Lanes(d)) * sizeof(T));
}

/// Loads elements [first, first + count) of a row whose dtype is known only at run time: f64 if D's lanes are f64, otherwise f32
/// or bf16.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const ConstRow& row, std::size_t first, std::size_t count) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return load(d, reinterpret_cast<const double*>(row.data) + first, count);
  } else {
    if (row.dtype == DType::bf16) return load(d, reinterpret_cast<const bf16*>(row.data) + first, count);
    return load(d, reinterpret_cast<const float*>(row.data) + first, count);
  }
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, const Row& row, std::size_t first, std::size_t count) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    store(d, value, reinterpret_cast<double*>(row.data) + first, count);
  } else if (row.dtype == DType::bf16) {
    store(d, value, reinterpret_cast<bf16*>(row.data) + first, count);
  } else {
    store(d, value, reinterpret_cast<float*>(row.data) + first, count);
  }
}

/// Calls body(first, count) for consecutive pieces of [0, total), all of them full vectors but for the last.
template <class D, class Body>
HWY_INLINE void for_lanes(D d, std::size_t total, Body&& body) {
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= total; i += lanes) body(i, lanes);
  if (i < total) body(i, total - i);
}

/// Side of the squares that transpose_square() copies: as many elements as 16 bytes hold.
template <class T>
constexpr std::size_t kSquare = HWY_TARGET == HWY_SCALAR ? 1 : 16 / sizeof(T);

/// Copies to[c·to_step + r] = from[r·step + c] of a square; bf16 becomes float if T is. Interleaving rows i and i + side/2 moves
/// the highest bit of each element's row to the lowest bit of its column; as many times as such an index has bits exchange both.
template <class T, class From>
HWY_INLINE void transpose_square(T* to, std::size_t to_step, const From* from, std::size_t step) {
  constexpr std::size_t kRows = kSquare<T>;
  const hn::FixedTag<T, kRows> d;
  hn::Vec<decltype(d)> rows[kRows];
  for (std::size_t i = 0; i < kRows; ++i) rows[i] = load_full(d, from + i * step);
  for (std::size_t done = 1; done < kRows; done *= 2) {
    hn::Vec<decltype(d)> next[kRows];
    for (std::size_t i = 0; i < kRows / 2; ++i) {
      next[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + kRows / 2]);
      next[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + kRows / 2]);
    }
    for (std::size_t i = 0; i < kRows; ++i) rows[i] = next[i];
  }
  for (std::size_t i = 0; i < kRows; ++i) hn::StoreU(rows[i], d, to + i * to_step);
}

template <class D>
HWY_INLINE hn::TFromD<D> sum_of_lanes(D d, hn::Vec<D> value) {
  return hn::GetLane(hn::SumOfLanes(d, value));
}
template <class D>
HWY_INLINE hn::TFromD<D> max_of_lanes(D d, hn::Vec<D> value) {
  return hn::GetLane(hn::MaxOfLanes(d, value));
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
