// Norms are computed by rows, gradients of gain and bias by columns.
//
// Backward works on blocks of rows: first the statistics of each row of the block, then the column sums, then dx. So the sums
// over rows are never cut, and the workspace holds the statistics of one block only.
#include "core/kernels/norm.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/norm.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

#ifndef TSP_KERNELS_NORM_TYPES
#define TSP_KERNELS_NORM_TYPES
namespace tsprun::detail::kernels {
/// Statistics of a row: x̂ = (x − mean)·rate. For RMSNorm, mean is 0.
struct Statistics {
  double mean;
  double rate;
};
/// Operands of a norm on one row.
struct NormRow {
  bool centered;  // LayerNorm
  bool has_bias;  // LayerNorm, forward
  double epsilon;
  NormForm form;
  std::size_t width;
  std::size_t whole_width;  // 0, or the width of the rows of which x is a part, whose sums follow
  double squares;
  double products;
  ConstRow x;
  ConstRow gain;  // without data: 1
  ConstRow bias;  // if has_bias
  ConstRow dy;
  Row out;  // y or dx
  bool add;
};
/// Operands of the column sums over a block's rows.
struct ColumnSums {
  const Tensor* dgain;
  const Tensor* dbias;  // null: no bias
  const ConstTensor* dy;
  const ConstTensor* x;
  const Statistics* statistics;
  std::size_t first_row;
  std::size_t rows;
  double multiplier;
};
}  // namespace tsprun::detail::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

template <class T>
Statistics statistics_of(const NormRow& row) {
  const hn::ScalableTag<T> d;
  const auto width = static_cast<T>(row.width);
  T mean = 0;
  if (row.centered) {
    auto sum = hn::Zero(d);
    for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR { sum = hn::Add(sum, load(d, row.x, i, n)); });
    mean = sum_of_lanes(d, sum) / width;
  }
  T variance = 0;
  if (row.whole_width > 0) {
    variance = static_cast<T>(row.squares) / static_cast<T>(row.whole_width);
  } else {
    auto squares = hn::Zero(d);
    const auto center = hn::Set(d, mean);
    for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
      const auto x = hn::IfThenElseZero(hn::FirstN(d, n), hn::Sub(load(d, row.x, i, n), center));
      squares = hn::MulAdd(x, x, squares);
    });
    variance = sum_of_lanes(d, squares) / width;
  }
  // If the squares overflow, rate would be 0 and turn a row of numbers into zeros; NaN makes the failure visible.
  if (!std::isfinite(variance)) return {static_cast<double>(mean), std::numeric_limits<double>::quiet_NaN()};
  return {static_cast<double>(mean), static_cast<double>(T{1} / std::sqrt(variance + static_cast<T>(row.epsilon)))};
}

/// Returns the effective gain.
template <bool kPlain, class D>
HWY_INLINE hn::Vec<D> gain_of(D d, const NormRow& row, std::size_t i, std::size_t n) {
  if constexpr (!kPlain) {
    if (row.gain.data == nullptr) return hn::Set(d, hn::TFromD<D>{1});
  }
  const auto gain = load(d, row.gain, i, n);
  if constexpr (kPlain) return gain;
  else return row.form.gain_from_one ? hn::Add(hn::Set(d, hn::TFromD<D>{1}), gain) : gain;
}

// Most norms are plain: a gain w, and LayerNorm with a bias. Their code is apart, and computes nothing besides.

template <class T, bool kPlain>
void forward_typed(const NormRow& row) {
  const hn::ScalableTag<T> d;
  const Statistics statistics = statistics_of<T>(row);
  const auto mean = hn::Set(d, static_cast<T>(statistics.mean));
  const auto rate = hn::Set(d, static_cast<T>(statistics.rate));
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    auto y = hn::Mul(hn::Mul(hn::Sub(load(d, row.x, i, n), mean), rate), gain_of<kPlain>(d, row, i, n));
    if (kPlain ? row.centered : row.has_bias) y = hn::Add(y, load(d, row.bias, i, n));
    if constexpr (!kPlain) y = hn::Mul(y, hn::Set(d, static_cast<T>(row.form.multiplier)));
    store(d, y, row.out, i, n);
  });
}

/// Returns dx̂ = g ∘ dy, times the multiplier.
template <bool kPlain, class D>
HWY_INLINE hn::Vec<D> gradient_of(D d, const NormRow& row, std::size_t i, std::size_t n) {
  const auto gradient = hn::Mul(gain_of<kPlain>(d, row, i, n), load(d, row.dy, i, n));
  if constexpr (kPlain) return gradient;
  else return hn::Mul(gradient, hn::Set(d, static_cast<hn::TFromD<D>>(row.form.multiplier)));
}

template <class T, bool kPlain>
void backward_typed(const NormRow& row, const Statistics& statistics) {
  const hn::ScalableTag<T> d;
  const auto mean = hn::Set(d, static_cast<T>(statistics.mean));
  const auto rate = hn::Set(d, static_cast<T>(statistics.rate));
  auto mean_gradient = hn::Zero(d);
  auto mean_product = mean_gradient;
  if (row.whole_width > 0) {
    mean_product = hn::Mul(rate, hn::Set(d, static_cast<T>(row.products) / static_cast<T>(row.whole_width)));
  } else {
    auto sum = hn::Zero(d);
    auto product = hn::Zero(d);
    for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
      const auto normal = hn::Mul(hn::Sub(load(d, row.x, i, n), mean), rate);
      const auto gradient = gradient_of<kPlain>(d, row, i, n);
      sum = hn::Add(sum, gradient);
      product = hn::MulAdd(gradient, normal, product);
    });
    const auto width = static_cast<T>(row.width);
    if (row.centered) mean_gradient = hn::Set(d, sum_of_lanes(d, sum) / width);
    mean_product = hn::Set(d, sum_of_lanes(d, product) / width);
  }
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto normal = hn::Mul(hn::Sub(load(d, row.x, i, n), mean), rate);
    const auto gradient = gradient_of<kPlain>(d, row, i, n);
    auto dx = hn::Mul(rate, hn::Sub(hn::Sub(gradient, mean_gradient), hn::Mul(normal, mean_product)));
    if (row.add) dx = hn::Add(load(d, ConstRow(row.out), i, n), dx);
    store(d, dx, row.out, i, n);
  });
}

template <class T, bool kPlain>
void columns_typed(const ColumnSums& sums, std::size_t first, std::size_t end) {
  const hn::ScalableTag<T> d;
  T* dgain = sums.dgain->as<T>();
  T* dbias = sums.dbias == nullptr ? nullptr : sums.dbias->as<T>();
  for (std::size_t r = 0; r < sums.rows; ++r) {
    const ConstRow x = row_of(*sums.x, sums.first_row + r);
    const ConstRow dy = row_of(*sums.dy, sums.first_row + r);
    const auto mean = hn::Set(d, static_cast<T>(sums.statistics[r].mean));
    const auto rate = hn::Set(d, static_cast<T>(sums.statistics[r].rate));
    for_lanes(d, end - first, [&](std::size_t at, std::size_t n) HWY_ATTR {
      const std::size_t i = first + at;
      const auto normal = hn::Mul(hn::Sub(load(d, x, i, n), mean), rate);
      auto gradient = load(d, dy, i, n);
      if constexpr (!kPlain) gradient = hn::Mul(gradient, hn::Set(d, static_cast<T>(sums.multiplier)));
      store(d, hn::MulAdd(gradient, normal, load(d, dgain + i, n)), dgain + i, n);
      if (dbias != nullptr) store(d, hn::Add(load(d, dbias + i, n), gradient), dbias + i, n);
    });
  }
}

/// Returns the sum of a row's dx̂ ∘ x, or of its x² if it has no dy.
template <class T, bool kPlain>
T sum_typed(const NormRow& row) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto x = load(d, row.x, i, n);
    sum = hn::MulAdd(row.dy.data == nullptr ? x : gradient_of<kPlain>(d, row, i, n), x, sum);
  });
  return sum_of_lanes(d, sum);
}

bool wide(const ConstRow& row) { return row.dtype == DType::f64; }

bool plain(const NormRow& row) { return row.form == NormForm{} && row.gain.data != nullptr; }

void norm_forward(const NormRow& row) {
  if (plain(row) && row.centered == row.has_bias)
    wide(row.x) ? forward_typed<double, true>(row) : forward_typed<float, true>(row);
  else wide(row.x) ? forward_typed<double, false>(row) : forward_typed<float, false>(row);
}
Statistics norm_statistics(const NormRow& row) { return wide(row.x) ? statistics_of<double>(row) : statistics_of<float>(row); }
void norm_dx(const NormRow& row, const Statistics& statistics) {
  if (plain(row)) wide(row.x) ? backward_typed<double, true>(row, statistics) : backward_typed<float, true>(row, statistics);
  else wide(row.x) ? backward_typed<double, false>(row, statistics) : backward_typed<float, false>(row, statistics);
}
void norm_sum(const NormRow& row) {
  if (row.form == NormForm{}) set_element(row.out, 0, wide(row.x) ? sum_typed<double, true>(row) : sum_typed<float, true>(row));
  else set_element(row.out, 0, wide(row.x) ? sum_typed<double, false>(row) : sum_typed<float, false>(row));
}
void norm_columns(const ColumnSums& sums, std::size_t first, std::size_t end) {
  const bool in_f64 = sums.x->dtype() == DType::f64;
  if (sums.multiplier == 1) in_f64 ? columns_typed<double, true>(sums, first, end) : columns_typed<float, true>(sums, first, end);
  else in_f64 ? columns_typed<double, false>(sums, first, end) : columns_typed<float, false>(sums, first, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(norm_forward);
HWY_EXPORT(norm_statistics);
HWY_EXPORT(norm_dx);
HWY_EXPORT(norm_sum);
HWY_EXPORT(norm_columns);

namespace {

constexpr std::size_t kBlockRows = 1024;

void check_parameter(const char* kernel, const ConstTensor& parameter, const ConstTensor& x) {
  require(parameter.dims() == 1 && parameter.size(0) == x.size(x.dims() - 1) && dense_rows(parameter) &&
              mixes(parameter.dtype(), x.dtype()),
          kernel, "gain and bias must be [h], f64 where x is", parameter);
}

void check_sums(const char* kernel, const ConstTensor& sums, const ConstTensor& x) {
  require(sums.dims() == 1 && sums.size(0) == row_count(x) && sums.contiguous() && sums.dtype() == summed_in(x.dtype()), kernel,
          "sums of rows must be [rows], in the type of sums", sums);
}

void check_whole(const char* kernel, const WholeRows& whole, const ConstTensor& x) {
  if (whole.width == 0) return;
  check_sums(kernel, whole.squares, x);
  if (whole.products.dims() > 0) check_sums(kernel, whole.products, x);
}

/// Takes what a row needs of the whole one.
void take_whole(NormRow& row, const WholeRows& whole, std::size_t number) {
  row.whole_width = whole.width;
  if (whole.width == 0) return;
  row.squares = element<double>(row_of(whole.squares, 0), number);
  row.products = whole.products.dims() == 0 ? 0 : element<double>(row_of(whole.products, 0), number);
}

/// Computes a norm's forward pass. A bias without dims: none.
void forward(const Compute& on, const char* kernel, bool centered, const Tensor& y, const ConstTensor& x, const ConstTensor& gain,
             const ConstTensor& bias, double epsilon, const NormForm& form, const WholeRows& whole = {}) {
  const bool has_bias = bias.dims() > 0;
  require(dense_rows(x) && computes(x.dtype()), kernel, "x must have dense rows of a float type", x);
  check_like(kernel, "y must have x's shape and dense rows", y, x);
  if (gain.dims() > 0) check_parameter(kernel, gain, x);
  if (has_bias) check_parameter(kernel, bias, x);
  check_whole(kernel, whole, x);
  if (x.empty()) return;
  const std::size_t width = x.size(x.dims() - 1);
  for_rows(on, row_count(x), width, [&](std::size_t first, std::size_t end) {
    NormRow row{};
    row.centered = centered;
    row.has_bias = has_bias;
    row.epsilon = epsilon;
    row.form = form;
    row.width = width;
    if (gain.dims() > 0) row.gain = row_of(gain, 0);
    if (has_bias) row.bias = row_of(bias, 0);
    for (std::size_t r = first; r < end; ++r) {
      row.x = row_of(x, r);
      row.out = row_of(y, r);
      take_whole(row, whole, r);
      HWY_DYNAMIC_DISPATCH(norm_forward)(row);
    }
  });
}

/// Computes a norm's backward pass. A dbias without dims: there is no bias.
void backward(const Compute& on, const char* kernel, bool centered, const Tensor& dx, const Tensor& dgain, const Tensor& dbias,
              const ConstTensor& dy, const ConstTensor& x, const ConstTensor& gain, double epsilon, Write write,
              const NormForm& form, const WholeRows& whole = {}) {
  require(dense_rows(x) && computes(x.dtype()), kernel, "x must have dense rows of a float type", x);
  check_like(kernel, "dy must have x's shape and dense rows", dy, x);
  check_like(kernel, "dx must have x's shape and dense rows", dx, x);
  const bool has_gain = gain.dims() > 0;
  if (has_gain) check_parameter(kernel, gain, x);
  for (const Tensor* sums : {&dgain, &dbias}) {
    if (sums->dims() == 0 && (sums == &dbias || !has_gain)) continue;
    check_parameter(kernel, *sums, x);
    require(sums->dtype() == summed_in(x.dtype()), kernel, "dgain and dbias must be of the type of sums", *sums);
  }
  check_whole(kernel, whole, x);
  check_workspace(on, kernel, norm_backward_workspace());
  if (x.empty()) return;
  const std::size_t rows = row_count(x);
  const std::size_t width = x.size(x.dims() - 1);
  Statistics* statistics = Carver(on.workspace).take<Statistics>(kBlockRows);
  const NormRow blank{.centered = centered,
                      .has_bias = false,
                      .epsilon = epsilon,
                      .form = form,
                      .width = width,
                      .whole_width = 0,
                      .squares = 0,
                      .products = 0,
                      .x = {},
                      .gain = has_gain ? row_of(gain, 0) : ConstRow{},
                      .bias = {},
                      .dy = {},
                      .out = {},
                      .add = write == Write::add};
  for (std::size_t block = 0; block < rows; block += kBlockRows) {
    const std::size_t count = std::min(kBlockRows, rows - block);
    for_rows(on, count, width, [&](std::size_t first, std::size_t end) {
      NormRow row = blank;
      for (std::size_t r = first; r < end; ++r) {
        row.x = row_of(x, block + r);
        take_whole(row, whole, block + r);
        statistics[r] = HWY_DYNAMIC_DISPATCH(norm_statistics)(row);
      }
    });
    if (has_gain) {
      const ColumnSums sums{&dgain, dbias.dims() == 0 ? nullptr : &dbias, &dy, &x, statistics, block, count, form.multiplier};
      for_columns(on, width, [&](std::size_t first, std::size_t columns) {
        HWY_DYNAMIC_DISPATCH(norm_columns)(sums, first, first + columns);
      });
    }
    for_rows(on, count, width, [&](std::size_t first, std::size_t end) {
      NormRow row = blank;
      for (std::size_t r = first; r < end; ++r) {
        row.x = row_of(x, block + r);
        row.dy = row_of(dy, block + r);
        row.out = row_of(dx, block + r);
        take_whole(row, whole, block + r);
        HWY_DYNAMIC_DISPATCH(norm_dx)(row, statistics[r]);
      }
    });
  }
}

}  // namespace

void rms_norm(const Compute& on, const Tensor& y, const ConstTensor& x, const ConstTensor& gain, double epsilon,
              const NormForm& form, const WholeRows& whole) {
  forward(on, "rms_norm", false, y, x, gain, {}, epsilon, form, whole);
}

void rms_norm_backward(const Compute& on, const Tensor& dx, const Tensor& dgain, const ConstTensor& dy, const ConstTensor& x,
                       const ConstTensor& gain, double epsilon, Write write, const NormForm& form, const WholeRows& whole) {
  backward(on, "rms_norm_backward", false, dx, dgain, {}, dy, x, gain, epsilon, write, form, whole);
}

void row_sums(const Compute& on, const Tensor& sums, const ConstTensor& x, const ConstTensor& dy, const ConstTensor& gain,
              const NormForm& form) {
  constexpr const char* kKernel = "row_sums";
  const bool squares = dy.dims() == 0;
  require(dense_rows(x) && computes(x.dtype()), kKernel, "x must have dense rows of a float type", x);
  check_sums(kKernel, sums, x);
  if (!squares) {
    check_like(kKernel, "dy must have x's shape and dense rows", dy, x);
    check_parameter(kKernel, gain, x);
  }
  const std::size_t width = x.size(x.dims() - 1);
  for_rows(on, row_count(x), width, [&](std::size_t first, std::size_t end) {
    NormRow row{};
    row.form = form;
    row.width = width;
    if (!squares) row.gain = row_of(gain, 0);
    for (std::size_t r = first; r < end; ++r) {
      row.x = row_of(x, r);
      if (!squares) row.dy = row_of(dy, r);
      row.out = row_of(sums.split(0, 1), r);
      HWY_DYNAMIC_DISPATCH(norm_sum)(row);
    }
  });
}

void layer_norm(const Compute& on, const Tensor& y, const ConstTensor& x, const ConstTensor& gain, const ConstTensor& bias,
                double epsilon, const NormForm& form) {
  forward(on, "layer_norm", true, y, x, gain, bias, epsilon, form);
}

void layer_norm_backward(const Compute& on, const Tensor& dx, const Tensor& dgain, const Tensor& dbias, const ConstTensor& dy,
                         const ConstTensor& x, const ConstTensor& gain, double epsilon, Write write, const NormForm& form) {
  backward(on, "layer_norm_backward", true, dx, dgain, dbias, dy, x, gain, epsilon, write, form);
}

std::size_t norm_backward_workspace() { return workspace_bytes(kBlockRows * sizeof(Statistics), 1); }

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
