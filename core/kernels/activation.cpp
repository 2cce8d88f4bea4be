// Elementwise activations, row by row. The exponential is Highway's with NaN kept (exp-inl.h). erfc is, in f32, the Chebyshev fit
// of Numerical Recipes (relative error 1.2e-7) and, in f64, the C library's, lane by lane.
#include "core/kernels/activation.h"

#include "core/kernels/check.h"

#include <cmath>
#include <initializer_list>
#include <numbers>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/activation.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/exp-inl.h"

#ifndef TSP_KERNELS_ACTIVATION_TYPES
#define TSP_KERNELS_ACTIVATION_TYPES
namespace tsprun::detail::kernels {
/// One row of an activation: up to three inputs and two outputs.
struct ActivationRow {
  std::size_t width;
  ConstRow in[3];
  Row out[2];
};
}  // namespace tsprun::detail::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

/// Returns σ(x). The argument is clamped where e^(−x) would overflow; σ(x) is then too small to matter in any gradient.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto one = hn::Set(d, T{1});
  const auto clamped = hn::Min(hn::Neg(x), hn::Set(d, sizeof(T) == 4 ? T{80} : T{700}));
  return hn::Div(one, hn::Add(one, exp_of(d, clamped)));
}

template <class T>
void swiglu_typed(const ActivationRow& row) {
  const hn::ScalableTag<T> d;
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto gate = load(d, row.in[0], i, n);
    const auto up = load(d, row.in[1], i, n);
    store(d, hn::Mul(hn::Mul(gate, sigmoid(d, gate)), up), row.out[0], i, n);
  });
}

template <class T>
void swiglu_backward_typed(const ActivationRow& row) {
  const hn::ScalableTag<T> d;
  const auto one = hn::Set(d, T{1});
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto gate = load(d, row.in[0], i, n);
    const auto up = load(d, row.in[1], i, n);
    const auto dy = load(d, row.in[2], i, n);
    const auto s = sigmoid(d, gate);
    const auto slope = hn::Mul(s, hn::MulAdd(gate, hn::Sub(one, s), one));
    store(d, hn::Mul(hn::Mul(dy, up), slope), row.out[0], i, n);
    store(d, hn::Mul(dy, hn::Mul(gate, s)), row.out[1], i, n);
  });
}

/// Returns Φ(x) = erfc(−x/√2)/2, the standard normal distribution function.
template <class D>
HWY_INLINE hn::Vec<D> normal_distribution(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  if constexpr (sizeof(T) == 8) {
    alignas(64) T lanes[HWY_LANES(T)];
    hn::Store(x, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = std::erfc(-lanes[i] / std::numbers::sqrt2) / 2;
    return hn::Load(d, lanes);
  } else {
    constexpr T kCoefficients[] = {0.17087277F,  -0.82215223F, 1.48851587F, -1.13520398F, 0.27886807F,
                                   -0.18628806F, 0.09678418F,  0.37409196F, 1.00002368F,  -1.26551223F};
    const auto z = hn::Mul(hn::Abs(x), hn::Set(d, static_cast<T>(1 / std::numbers::sqrt2)));
    const auto t = hn::Div(hn::Set(d, T{1}), hn::MulAdd(hn::Set(d, T{0.5F}), z, hn::Set(d, T{1})));
    auto exponent = hn::Zero(d);
    for (const T coefficient : kCoefficients) exponent = hn::MulAdd(exponent, t, hn::Set(d, coefficient));
    const auto half_tail = hn::Mul(hn::Mul(hn::Set(d, T{0.5F}), t), exp_of(d, hn::Sub(exponent, hn::Mul(z, z))));
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(hn::Set(d, T{1}), half_tail), half_tail);
  }
}

/// Computes value = gelu(x) and slope = gelu'(x).
template <class D>
HWY_INLINE void gelu_of(D d, Gelu form, hn::Vec<D> x, hn::Vec<D>& value, hn::Vec<D>& slope) {
  using T = hn::TFromD<D>;
  const auto one = hn::Set(d, T{1});
  if (form == Gelu::exact) {
    const auto distribution = normal_distribution(d, x);
    const auto inverse_root = hn::Set(d, static_cast<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2));
    const auto density = hn::Mul(inverse_root, exp_of(d, hn::Mul(hn::Set(d, static_cast<T>(-0.5)), hn::Mul(x, x))));
    value = hn::Mul(x, distribution);
    slope = hn::MulAdd(x, density, distribution);
    return;
  }
  const auto linear = hn::Set(d, static_cast<T>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi));
  const auto cubic = hn::Set(d, static_cast<T>(0.044715));
  const auto square = hn::Mul(x, x);
  const auto inner = hn::Mul(linear, hn::Mul(x, hn::MulAdd(cubic, square, one)));
  // (1 + tanh(u))/2 = σ(2u), without the cancellation of the former where tanh is near −1.
  const auto s = sigmoid(d, hn::Add(inner, inner));
  const auto inner_slope = hn::Mul(linear, hn::MulAdd(hn::Mul(hn::Set(d, T{3}), cubic), square, one));
  value = hn::Mul(x, s);
  slope = hn::MulAdd(hn::Mul(hn::Mul(x, s), hn::Sub(one, s)), hn::Add(inner_slope, inner_slope), s);
}

template <class T>
void gelu_typed(const ActivationRow& row, Gelu form, bool backward) {
  const hn::ScalableTag<T> d;
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    auto value = hn::Zero(d);
    auto slope = hn::Zero(d);
    gelu_of(d, form, load(d, row.in[0], i, n), value, slope);
    store(d, backward ? hn::Mul(load(d, row.in[1], i, n), slope) : value, row.out[0], i, n);
  });
}

template <class T>
void geglu_typed(const ActivationRow& row, Gelu form, bool backward) {
  const hn::ScalableTag<T> d;
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    auto value = hn::Zero(d);
    auto slope = hn::Zero(d);
    gelu_of(d, form, load(d, row.in[0], i, n), value, slope);
    const auto up = load(d, row.in[1], i, n);
    if (!backward) {
      store(d, hn::Mul(value, up), row.out[0], i, n);
      return;
    }
    const auto dy = load(d, row.in[2], i, n);
    store(d, hn::Mul(hn::Mul(dy, up), slope), row.out[0], i, n);
    store(d, hn::Mul(dy, value), row.out[1], i, n);
  });
}

bool wide(const ActivationRow& row) { return row.in[0].dtype == DType::f64; }
void swiglu_row(const ActivationRow& row) { wide(row) ? swiglu_typed<double>(row) : swiglu_typed<float>(row); }
void swiglu_backward_row(const ActivationRow& row) {
  wide(row) ? swiglu_backward_typed<double>(row) : swiglu_backward_typed<float>(row);
}
void gelu_row(const ActivationRow& row, Gelu form, bool backward) {
  wide(row) ? gelu_typed<double>(row, form, backward) : gelu_typed<float>(row, form, backward);
}
void geglu_row(const ActivationRow& row, Gelu form, bool backward) {
  wide(row) ? geglu_typed<double>(row, form, backward) : geglu_typed<float>(row, form, backward);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(swiglu_row);
HWY_EXPORT(swiglu_backward_row);
HWY_EXPORT(gelu_row);
HWY_EXPORT(geglu_row);

namespace {

/// Calls body on every row of the views, once all of them are checked against the first input.
template <class Body>
void for_activation_rows(const Compute& on, const char* kernel, std::initializer_list<const Tensor*> outs,
                         std::initializer_list<const ConstTensor*> ins, Body body) {
  const ConstTensor& first_in = **ins.begin();
  require(dense_rows(first_in) && computes(first_in.dtype()), kernel, "the inputs must have dense rows of a float type",
          first_in);
  for (const ConstTensor* in : ins)
    check_like(kernel, "the inputs must have one shape, dense rows and types that mix", *in, first_in);
  for (const Tensor* out : outs)
    check_like(kernel, "the outputs must have the inputs' shape, dense rows, a type that mixes", *out, first_in);
  if (first_in.empty()) return;
  const std::size_t width = first_in.size(first_in.dims() - 1);
  for_rows(on, row_count(first_in), width, [&](std::size_t begin, std::size_t end) {
    ActivationRow row{};
    row.width = width;
    for (std::size_t r = begin; r < end; ++r) {
      std::size_t i = 0;
      for (const ConstTensor* in : ins) row.in[i++] = row_of(*in, r);
      i = 0;
      for (const Tensor* out : outs) row.out[i++] = row_of(*out, r);
      body(row);
    }
  });
}

}  // namespace

void swiglu(const Compute& on, const Tensor& y, const ConstTensor& gate, const ConstTensor& up) {
  for_activation_rows(on, "swiglu", {&y}, {&gate, &up}, [](const ActivationRow& row) { HWY_DYNAMIC_DISPATCH(swiglu_row)(row); });
}

void swiglu_backward(const Compute& on, const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                     const ConstTensor& up) {
  for_activation_rows(on, "swiglu_backward", {&dgate, &dup}, {&gate, &up, &dy}, [](const ActivationRow& row) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward_row)(row);
  });
}

void gelu(const Compute& on, const Tensor& y, const ConstTensor& x, Gelu form) {
  for_activation_rows(on, "gelu", {&y}, {&x}, [&](const ActivationRow& row) {
    HWY_DYNAMIC_DISPATCH(gelu_row)(row, form, false);
  });
}

void gelu_backward(const Compute& on, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, Gelu form) {
  for_activation_rows(on, "gelu_backward", {&dx}, {&x, &dy}, [&](const ActivationRow& row) {
    HWY_DYNAMIC_DISPATCH(gelu_row)(row, form, true);
  });
}

void geglu(const Compute& on, const Tensor& y, const ConstTensor& gate, const ConstTensor& up, Gelu form) {
  for_activation_rows(on, "geglu", {&y}, {&gate, &up}, [&](const ActivationRow& row) {
    HWY_DYNAMIC_DISPATCH(geglu_row)(row, form, false);
  });
}

void geglu_backward(const Compute& on, const Tensor& dgate, const Tensor& dup, const ConstTensor& dy, const ConstTensor& gate,
                    const ConstTensor& up, Gelu form) {
  for_activation_rows(on, "geglu_backward", {&dgate, &dup}, {&gate, &up, &dy}, [&](const ActivationRow& row) {
    HWY_DYNAMIC_DISPATCH(geglu_row)(row, form, true);
  });
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
