// Online softmax cross-entropy. Each row of logits is read twice: once for its maximum, once for its exponentials.
#include "core/kernels/cross_entropy.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

template <class T>
double maximum_typed(const ConstRow& row, std::size_t width) {
  const hn::ScalableTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto maximum = lowest;
  for_lanes(d, width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    maximum = hn::Max(maximum, hn::IfThenElse(hn::FirstN(d, n), load(d, row, i, n), lowest));
  });
  return static_cast<double>(max_of_lanes(d, maximum));
}

template <class T>
double exponentials_typed(const ConstRow& row, std::size_t width, double maximum) {
  const hn::ScalableTag<T> d;
  const auto shift = hn::Set(d, static_cast<T>(maximum));
  auto sum = hn::Zero(d);
  for_lanes(d, width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, n), exp_of(d, hn::Sub(load(d, row, i, n), shift))));
  });
  return static_cast<double>(sum_of_lanes(d, sum));
}

template <class T>
void probabilities_typed(const Row& out, const ConstRow& row, std::size_t width, double lse, double weight, double cap) {
  const hn::ScalableTag<T> d;
  const auto shift = hn::Set(d, static_cast<T>(lse));
  const auto factor = hn::Set(d, static_cast<T>(weight));
  if (cap == 0) {
    for_lanes(d, width, [&](std::size_t i, std::size_t n) HWY_ATTR {
      store(d, hn::Mul(factor, exp_of(d, hn::Sub(load(d, row, i, n), shift))), out, i, n);
    });
    return;
  }
  const auto one = hn::Set(d, T{1});
  const auto inverse = hn::Set(d, static_cast<T>(1 / cap));
  for_lanes(d, width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    const auto logit = load(d, row, i, n);
    const auto tanh = hn::Mul(inverse, logit);
    const auto p = hn::Mul(factor, exp_of(d, hn::Sub(logit, shift)));
    store(d, hn::Mul(p, hn::NegMulAdd(tanh, tanh, one)), out, i, n);
  });
}

template <class T>
void cap_typed(const Row& row, std::size_t width, double cap) {
  const hn::ScalableTag<T> d;
  const auto most = hn::Set(d, static_cast<T>(cap));
  const auto inverse = hn::Set(d, static_cast<T>(1 / cap));
  for_lanes(d, width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    store(d, hn::Mul(most, tanh_of_finite(d, hn::Mul(inverse, load(d, ConstRow(row), i, n)))), row, i, n);
  });
}

double row_maximum(const ConstRow& row, std::size_t width) {
  return row.dtype == DType::f64 ? maximum_typed<double>(row, width) : maximum_typed<float>(row, width);
}
double row_exponentials(const ConstRow& row, std::size_t width, double maximum) {
  return row.dtype == DType::f64 ? exponentials_typed<double>(row, width, maximum)
                                 : exponentials_typed<float>(row, width, maximum);
}
void row_probabilities(const Row& out, const ConstRow& row, std::size_t width, double lse, double weight, double cap) {
  row.dtype == DType::f64 ? probabilities_typed<double>(out, row, width, lse, weight, cap)
                          : probabilities_typed<float>(out, row, width, lse, weight, cap);
}
void cap_row(const Row& row, std::size_t width, double cap) {
  row.dtype == DType::f64 ? cap_typed<double>(row, width, cap) : cap_typed<float>(row, width, cap);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(row_maximum);
HWY_EXPORT(row_exponentials);
HWY_EXPORT(row_probabilities);
HWY_EXPORT(cap_row);

namespace {

void check_vector(const char* kernel, const ConstTensor& vector, std::size_t tokens, DType dtype) {
  require(vector.dims() == 1 && dense_rows(vector) && vector.size(0) == tokens && vector.dtype() == dtype, kernel,
          "the state of tokens must be [T] of the type of sums", vector);
}

void check_logits(const char* kernel, const ConstTensor& logits, std::span<const std::int64_t> labels) {
  require(logits.dims() == 2 && dense_rows(logits) && computes(logits.dtype()), kernel,
          "the logits must be [T, Vs] of a float type", logits);
  require(logits.size(0) == labels.size(), kernel, "the logits must have a row for each label", logits);
}

/// Returns the index of the label in a shard of `width` ids that begins with first_id, or `width` if the label is in another
/// shard.
std::size_t place_of(std::int64_t label, std::int64_t first_id, std::size_t width) {
  if (label < first_id || label - first_id >= static_cast<std::int64_t>(width)) return width;
  return static_cast<std::size_t>(label - first_id);
}

/// Calls body with a null pointer to float or double, by the vector's dtype, and returns its result.
template <class Body>
auto with_sum_type(const char* kernel, const ConstTensor& vector, Body body) {
  require(vector.dims() == 1 && (vector.dtype() == DType::f32 || vector.dtype() == DType::f64), kernel,
          "the state of tokens must be [T] of f32 or f64", vector);
  return vector.dtype() == DType::f64 ? body(static_cast<double*>(nullptr)) : body(static_cast<float*>(nullptr));
}

template <class T>
void update_rows(const Compute& on, const Tensor& maximum, const Tensor& sum, const Tensor& label_logit,
                 const ConstTensor& logits, std::span<const std::int64_t> labels, std::int64_t first_id) {
  const std::size_t width = logits.size(1);
  for_rows(on, logits.size(0), width, [&](std::size_t first, std::size_t end) {
    for (std::size_t t = first; t < end; ++t) {
      const ConstRow row = row_of(logits, t);
      T& maximum_t = maximum.as<T>()[t];
      T& sum_t = sum.as<T>()[t];
      const auto row_highest = static_cast<T>(HWY_DYNAMIC_DISPATCH(row_maximum)(row, width));
      const T highest = row_highest <= maximum_t ? maximum_t : row_highest;  // a NaN wins
      if (highest != -std::numeric_limits<T>::infinity()) {
        sum_t = sum_t * std::exp(maximum_t - highest) +
                static_cast<T>(HWY_DYNAMIC_DISPATCH(row_exponentials)(row, width, static_cast<double>(highest)));
        maximum_t = highest;
      }
      const std::size_t place = place_of(labels[t], first_id, width);
      if (place < width) label_logit.as<T>()[t] = element<T>(row, place);
    }
  });
}

}  // namespace

void cap_logits(const Compute& on, const Tensor& logits, double cap) {
  require(logits.dims() == 2 && dense_rows(logits) && computes(logits.dtype()), "cap_logits",
          "the logits must be [T, Vs] of a float type", logits);
  if (!(cap > 0)) throw std::invalid_argument("cap_logits: the cap must be positive");
  for_rows(on, logits.size(0), logits.size(1), [&](std::size_t first, std::size_t end) {
    for (std::size_t t = first; t < end; ++t) HWY_DYNAMIC_DISPATCH(cap_row)(row_of(logits, t), logits.size(1), cap);
  });
}

void cross_entropy_begin(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit) {
  with_sum_type("cross_entropy_begin", maximum, [&](auto* of) {
    using T = std::remove_pointer_t<decltype(of)>;
    std::ranges::fill(maximum.span<T>(), -std::numeric_limits<T>::infinity());
    std::ranges::fill(sum.span<T>(), T{0});
    std::ranges::fill(label_logit.span<T>(), T{0});
  });
}

void cross_entropy_update(const Compute& on, const Tensor& maximum, const Tensor& sum, const Tensor& label_logit,
                          const ConstTensor& logits, std::span<const std::int64_t> labels, std::int64_t first_id) {
  constexpr char kKernel[] = "cross_entropy_update";
  check_logits(kKernel, logits, labels);
  for (const Tensor* vector : {&maximum, &sum, &label_logit}) {
    check_vector(kKernel, *vector, labels.size(), summed_in(logits.dtype()));
  }
  if (logits.empty()) return;
  if (logits.dtype() == DType::f64) {
    update_rows<double>(on, maximum, sum, label_logit, logits, labels, first_id);
  } else {
    update_rows<float>(on, maximum, sum, label_logit, logits, labels, first_id);
  }
}

void cross_entropy_finish(const Tensor& lse, const ConstTensor& maximum, const ConstTensor& sum) {
  with_sum_type("cross_entropy_finish", maximum, [&](auto* of) {
    using T = std::remove_pointer_t<decltype(of)>;
    check_vector("cross_entropy_finish", lse, maximum.size(0), maximum.dtype());
    check_vector("cross_entropy_finish", sum, maximum.size(0), maximum.dtype());
    for (std::size_t t = 0; t < maximum.size(0); ++t) {
      const T shift = maximum.as<T>()[t];
      // If nothing was seen, or only −∞, the sum is 0 and its logarithm would be −∞ already.
      lse.as<T>()[t] = sum.as<T>()[t] == T{0} ? -std::numeric_limits<T>::infinity() : shift + std::log(sum.as<T>()[t]);
    }
  });
}

void merge_log_sum_exp(const Tensor& lse, std::span<const ConstTensor> parts) {
  with_sum_type("merge_log_sum_exp", lse, [&](auto* of) {
    using T = std::remove_pointer_t<decltype(of)>;
    for (const ConstTensor& part : parts) check_vector("merge_log_sum_exp", part, lse.size(0), lse.dtype());
    for (std::size_t t = 0; t < lse.size(0); ++t) {
      T maximum = -std::numeric_limits<T>::infinity();
      for (const ConstTensor& part : parts) {
        const T value = part.as<T>()[t];
        maximum = value > maximum || std::isnan(value) ? value : maximum;  // a NaN stays
      }
      T sum = 0;
      for (const ConstTensor& part : parts)
        sum += maximum == -std::numeric_limits<T>::infinity() ? T{0} : std::exp(part.as<T>()[t] - maximum);
      lse.as<T>()[t] = sum == T{0} ? maximum : maximum + std::log(sum);
    }
  });
}

double cross_entropy_loss(const ConstTensor& lse, const ConstTensor& label_logit, std::span<const std::int64_t> labels) {
  return with_sum_type("cross_entropy_loss", lse, [&](auto* of) {
    using T = std::remove_pointer_t<decltype(of)>;
    check_vector("cross_entropy_loss", lse, labels.size(), lse.dtype());
    check_vector("cross_entropy_loss", label_logit, labels.size(), lse.dtype());
    double loss = 0;
    for (std::size_t t = 0; t < labels.size(); ++t) {
      if (labels[t] == kNoLabel) continue;
      loss += static_cast<double>(lse.as<T>()[t]) - static_cast<double>(label_logit.as<T>()[t]);
    }
    return loss;
  });
}

void cross_entropy_backward(const Compute& on, const Tensor& dlogits, const ConstTensor& logits, const ConstTensor& lse,
                            std::span<const std::int64_t> labels, std::int64_t first_id, double weight, double cap) {
  constexpr char kKernel[] = "cross_entropy_backward";
  check_logits(kKernel, logits, labels);
  check_like(kKernel, "dlogits must have the logits' shape, dense rows and a type that mixes", dlogits, logits);
  check_vector(kKernel, lse, labels.size(), summed_in(logits.dtype()));
  const std::size_t width = logits.size(1);
  if (logits.empty()) return;
  for_rows(on, logits.size(0), width, [&](std::size_t first, std::size_t end) {
    for (std::size_t t = first; t < end; ++t) {
      const Row out = row_of(dlogits, t);
      if (labels[t] == kNoLabel) {
        std::fill_n(out.data, width * size_of(out.dtype), std::byte{0});
        continue;
      }
      const ConstRow row = row_of(logits, t);
      const double lse_t = element<double>(row_of(lse, 0), t);
      const std::size_t place = place_of(labels[t], first_id, width);
      // Read this first: dlogits may be the same memory as logits.
      const double label_logit = place < width ? element<double>(row, place) : 0;
      HWY_DYNAMIC_DISPATCH(row_probabilities)(out, row, width, lse_t, weight, cap);
      if (place >= width) continue;
      const double slope = cap == 0 ? 1 : 1 - label_logit / cap * (label_logit / cap);
      set_element(out, place, weight * (std::exp(label_logit - lse_t) - 1) * slope);
    }
  });
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
