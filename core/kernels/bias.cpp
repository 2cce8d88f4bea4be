// Adds biases by rows and sums their gradients by columns, so that a sum over rows is never cut.
#include "core/kernels/bias.h"

#include "core/kernels/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/bias.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

template <class T>
void add_typed(const Row& to, std::size_t to_first, const ConstRow& term, std::size_t term_first, std::size_t count) {
  const hn::ScalableTag<T> d;
  for_lanes(d, count, [&](std::size_t i, std::size_t n) HWY_ATTR {
    store(d, hn::Add(load(d, ConstRow(to), to_first + i, n), load(d, term, term_first + i, n)), to, to_first + i, n);
  });
}

/// Adds term[term_first + i] to to[to_first + i] for i < count.
void add_stretch(const Row& to, std::size_t to_first, const ConstRow& term, std::size_t term_first, std::size_t count) {
  to.dtype == DType::f64 ? add_typed<double>(to, to_first, term, term_first, count)
                         : add_typed<float>(to, to_first, term, term_first, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(add_stretch);

namespace {

void check_vector(const char* kernel, const ConstTensor& vector, const ConstTensor& rows) {
  require(dense_rows(rows) && computes(rows.dtype()), kernel, "the rows must be dense and of a float type", rows);
  require(vector.dims() == 1 && dense_rows(vector) && vector.size(0) == rows.size(rows.dims() - 1) &&
              mixes(vector.dtype(), rows.dtype()),
          kernel, "the vector must be [n] of a type that mixes", vector);
}

}  // namespace

void add_bias(const Compute& on, const Tensor& x, const ConstTensor& bias) {
  check_vector("add_bias", bias, x);
  if (x.empty()) return;
  const std::size_t width = bias.size(0);
  for_rows(on, row_count(x), width, [&](std::size_t first, std::size_t end) {
    for (std::size_t r = first; r < end; ++r) HWY_DYNAMIC_DISPATCH(add_stretch)(row_of(x, r), 0, row_of(bias, 0), 0, width);
  });
}

void bias_backward(const Compute& on, const Tensor& dbias, const ConstTensor& dy) {
  check_vector("bias_backward", dbias, dy);
  require(dbias.dtype() == summed_in(dy.dtype()), "bias_backward", "dbias must be of the type of sums", dbias);
  if (dy.empty()) return;
  const std::size_t width = dbias.size(0);
  const std::size_t rows = row_count(dy);
  for_columns(on, width, [&](std::size_t first, std::size_t count) {
    for (std::size_t r = 0; r < rows; ++r)
      HWY_DYNAMIC_DISPATCH(add_stretch)(row_of(dbias, 0), first, row_of(dy, r), first, count);
  });
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
