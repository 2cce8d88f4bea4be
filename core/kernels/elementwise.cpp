// Elementwise operations. If all views are contiguous, they are one long row that is cut into tasks; otherwise tasks are groups
// of rows.
#include "core/kernels/elementwise.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/elementwise.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

/// Computes a row of out = a + factor·b.
template <class Out, class A, class B>
void add_multiple_row(Out* out, const A* a, const B* b, double factor, std::size_t count) {
  const Tag<A> d;
  const auto times = hn::Set(d, static_cast<Accumulator<A>>(factor));
  for_lanes(d, count, [&](std::size_t i, std::size_t n) HWY_ATTR {
    store(d, hn::MulAdd(times, load(d, b + i, n), load(d, a + i, n)), out + i, n);
  });
}

/// Computes a row of out = factor·a.
template <class Out, class A>
void multiply_row(Out* out, const A* a, double factor, std::size_t count) {
  const Tag<A> d;
  const auto times = hn::Set(d, static_cast<Accumulator<A>>(factor));
  for_lanes(d, count, [&](std::size_t i, std::size_t n) HWY_ATTR { store(d, hn::Mul(times, load(d, a + i, n)), out + i, n); });
}

/// Computes a row of out = a + b if `b` isn't null, otherwise out = a.
template <class Out, class A, class B>
void combine_row(Out* out, const A* a, const B* b, std::size_t count) {
  const Tag<A> d;
  if (b != nullptr) {
    for_lanes(d, count, [&](std::size_t i, std::size_t n) HWY_ATTR {
      store(d, hn::Add(load(d, a + i, n), load(d, b + i, n)), out + i, n);
    });
  } else {
    for_lanes(d, count, [&](std::size_t i, std::size_t n) HWY_ATTR { store(d, load(d, a + i, n), out + i, n); });
  }
}

template <class Out, class A, class B>
void combine_typed(Out* out, const A* a, const B* b, double factor, std::size_t count) {
  if (factor == 1) combine_row(out, a, b, count);
  else if (b != nullptr) add_multiple_row(out, a, b, factor, count);
  else multiply_row(out, a, factor, count);
}

template <class Out, class A>
void combine_any_term(void* out, const void* a, const void* b, DType b_type, double factor, std::size_t count) {
  if constexpr (std::is_same_v<A, double>) {
    combine_typed(static_cast<Out*>(out), static_cast<const A*>(a), static_cast<const double*>(b), factor, count);
  } else if (b_type == DType::bf16) {
    combine_typed(static_cast<Out*>(out), static_cast<const A*>(a), static_cast<const bf16*>(b), factor, count);
  } else {
    combine_typed(static_cast<Out*>(out), static_cast<const A*>(a), static_cast<const float*>(b), factor, count);
  }
}

/// Computes out = a + factor·b, or out = factor·a where `b` is null.
void combine(DType out_type, void* out, DType a_type, const void* a, DType b_type, const void* b, double factor,
             std::size_t count) {
  if (out_type == DType::f64) return combine_any_term<double, double>(out, a, b, b_type, factor, count);
  if (out_type == DType::f32) {
    if (a_type == DType::f32) return combine_any_term<float, float>(out, a, b, b_type, factor, count);
    return combine_any_term<float, bf16>(out, a, b, b_type, factor, count);
  }
  if (a_type == DType::f32) return combine_any_term<bf16, float>(out, a, b, b_type, factor, count);
  return combine_any_term<bf16, bf16>(out, a, b, b_type, factor, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(combine);

namespace {

/// Calls body(offset in out, offset in a, offset in b, elements) for pieces that cover all views.
template <class Body>
void for_pieces(const Compute& on, const Tensor& out, const ConstTensor& a, const ConstTensor& b, Body body) {
  const std::size_t elements = out.elements();
  if (elements == 0) return;
  if (out.contiguous() && a.contiguous() && b.contiguous()) {
    on.run(pieces(elements, kTaskElements), [&](std::size_t task, std::size_t) {
      const std::size_t first = task * kTaskElements;
      body(first, first, first, std::min(kTaskElements, elements - first));
    });
    return;
  }
  const std::size_t width = out.size(out.dims() - 1);
  for_rows(on, row_count(out), width, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) body(row_offset(out, row), row_offset(a, row), row_offset(b, row), width);
  });
}

void combine_views(const Compute& on, const char* kernel, const Tensor& out, const ConstTensor& a, const ConstTensor* b,
                   double factor = 1) {
  const ConstTensor& term = b == nullptr ? a : *b;
  for (const ConstTensor* view : {&a, &term}) {
    require(same_shape(out, *view), kernel, "the operands need the output's shape", *view);
    require(mixes(out.dtype(), view->dtype()), kernel, "f64 goes with f64, bf16 and f32 with each other", *view);
    require(dense_rows(*view), kernel, "the rows must be dense", *view);
  }
  require(dense_rows(out), kernel, "the output's rows must be dense", out);
  for_pieces(on, out, a, term, [&](std::size_t out_at, std::size_t a_at, std::size_t b_at, std::size_t count) {
    HWY_DYNAMIC_DISPATCH(combine)
    (out.dtype(), out.data() + out_at * size_of(out.dtype()), a.dtype(), a.data() + a_at * size_of(a.dtype()), term.dtype(),
     b == nullptr ? nullptr : term.data() + b_at * size_of(term.dtype()), factor, count);
  });
}

}  // namespace

void convert(const Compute& on, const Tensor& to, const ConstTensor& from) { combine_views(on, "convert", to, from, nullptr); }

void add(const Compute& on, const Tensor& out, const ConstTensor& a, const ConstTensor& b) {
  combine_views(on, "add", out, a, &b);
}

void add_multiple(const Compute& on, const Tensor& out, const ConstTensor& a, const ConstTensor& b, double factor) {
  combine_views(on, "add_multiple", out, a, &b, factor);
}

void multiply(const Compute& on, const Tensor& out, const ConstTensor& a, double factor) {
  combine_views(on, "multiply", out, a, nullptr, factor);
}

void fill_zero(const Compute& on, const Tensor& out) {
  require(dense_rows(out) || out.empty(), "fill_zero", "the output's rows must be dense", out);
  const std::size_t size = size_of(out.dtype());
  for_pieces(on, out, out, out, [&](std::size_t at, std::size_t, std::size_t, std::size_t count) {
    std::fill_n(out.data() + at * size, count * size, std::byte{0});
  });
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
