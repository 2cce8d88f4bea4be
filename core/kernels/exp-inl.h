// Vectorised exponentials, for source files that are compiled once per vector level (Highway's foreach_target). Unlike Highway's
// own, they return NaN for NaN: a model that diverged must not look healthy.
#include "core/kernels/lanes-inl.h"

#include <hwy/contrib/math/math-inl.h>

#if defined(TSP_KERNELS_EXP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TSP_KERNELS_EXP_INL
#undef TSP_KERNELS_EXP_INL
#else
#define TSP_KERNELS_EXP_INL
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

/// Returns e^x, for x ≤ 104 in f32 and x ≤ 706 in f64. NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> exp_of(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

/// Returns 2^x in f32 but e^x in f64 (flash_rows.h, kExponentUnit), for x ≤ 0 or slightly above. NaN stays NaN.
///
/// In f32, a polynomial (Cephes' exp2f, relative error 2e-7) covers half a unit on each side of the nearest integer, which is
/// then added to the exponent; results below 2^−126 become 0. The softmax of a 512 × 256 tile of scores takes 120 µs with
/// Highway's e^x and 73 µs with this, where the two matrix products of the tile take 340 µs (d = 64, AVX-512; run
/// bench/kernels_bench to repeat).
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

/// Returns tanh(x); NaN where x isn't finite: a score that overflowed must not look like one at its cap.
template <class D>
HWY_INLINE hn::Vec<D> tanh_of_finite(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsFinite(x), hn::Tanh(d, x), hn::Sub(x, x));
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
