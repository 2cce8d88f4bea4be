// Exponentials of vectors, for the kernels that are compiled once for every vector level. Unlike Highway's, they keep NaNs: a
// model that diverged must not look healthy.
#include "core/kernels/lanes-inl.h"

#include <hwy/contrib/math/math-inl.h>

#if defined(TSP_KERNELS_EXP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TSP_KERNELS_EXP_INL
#undef TSP_KERNELS_EXP_INL
#else
#define TSP_KERNELS_EXP_INL
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::kernels {
namespace HWY_NAMESPACE {

/// e^x for x ≤ 104 (f32), 706 (f64).
template <class D>
HWY_INLINE hn::Vec<D> exp_of(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

/// 2^x in f32, e^x in f64, for x ≤ 0 or little more. In f32: a polynomial (Cephes' exp2f, relative error 2e-7) on half a unit
/// around the nearest integer, which is added to the exponent. With Highway's e^x the softmax of a 512 × 256 tile of scores takes
/// 120 µs, with this 73 µs, where the two products of the tile take 340 µs (d = 64, AVX-512; bench/kernels_bench shows the
/// whole).
template <class D>
HWY_INLINE hn::Vec<D> power(D d, hn::Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return exp_of(d, x);
  } else {
    const hn::RebindToSigned<D> integers;
    const auto whole = hn::Round(x);
    const auto rest = hn::Sub(x, whole);
    auto value = hn::Set(d, 1.535336188319500e-4F);
    value = hn::MulAdd(value, rest, hn::Set(d, 1.339887440266574e-3F));
    value = hn::MulAdd(value, rest, hn::Set(d, 9.618437357674640e-3F));
    value = hn::MulAdd(value, rest, hn::Set(d, 5.550332471162809e-2F));
    value = hn::MulAdd(value, rest, hn::Set(d, 2.402264791363012e-1F));
    value = hn::MulAdd(value, rest, hn::Set(d, 6.931472028550421e-1F));
    value = hn::MulAdd(value, rest, hn::Set(d, 1.0F));
    const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(integers, whole));
    const auto scaled = hn::BitCast(d, hn::Add(hn::BitCast(integers, value), exponent));
    // A NaN has no nearest integer: its exponent would make a number of it.
    return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0F)), scaled));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
