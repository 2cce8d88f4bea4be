// Row-wise companions of flash attention: delta, which backward needs, and the merge of partial outputs.
#include "core/kernels/check.h"
#include "core/kernels/finite.h"
#include "core/kernels/flash.h"
#include "core/kernels/flash_tiles.h"

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/flash_merge.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

#ifndef TSP_KERNELS_MERGE_TYPES
#define TSP_KERNELS_MERGE_TYPES
namespace tsprun::detail::kernels {
inline constexpr std::size_t kMaxParts = 64;
/// Operands of one output row of a merge.
struct MergeRow {
  std::byte* out;
  DType out_type;
  std::array<const std::byte*, kMaxParts> parts;
  DType part_type;
  std::array<double, kMaxParts> weights;  // their sum is 1
  std::size_t count;
  std::size_t width;
};
}  // namespace tsprun::detail::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

template <class A, class B>
Accumulator<A> dot_row(const A* a, const B* b, std::size_t count) {
  const Tag<A> d;
  auto sum = hn::Zero(d);
  for_lanes(d, count,
            [&](std::size_t i, std::size_t n) HWY_ATTR { sum = hn::MulAdd(load(d, a + i, n), load(d, b + i, n), sum); });
  return sum_of_lanes(d, sum);
}

double dot(DType a_type, const std::byte* a, DType b_type, const std::byte* b, std::size_t count) {
  const auto* a_f32 = reinterpret_cast<const float*>(a);
  const auto* a_bf16 = reinterpret_cast<const bf16*>(a);
  const auto* b_f32 = reinterpret_cast<const float*>(b);
  const auto* b_bf16 = reinterpret_cast<const bf16*>(b);
  if (a_type == DType::f64) return dot_row(reinterpret_cast<const double*>(a), reinterpret_cast<const double*>(b), count);
  if (a_type == DType::f32) return b_type == DType::f32 ? dot_row(a_f32, b_f32, count) : dot_row(a_f32, b_bf16, count);
  return b_type == DType::f32 ? dot_row(a_bf16, b_f32, count) : dot_row(a_bf16, b_bf16, count);
}

template <class Out, class Part>
void merge_typed(const MergeRow& row) {
  const Tag<Part> d;
  using T = hn::TFromD<decltype(d)>;
  for_lanes(d, row.width, [&](std::size_t i, std::size_t n) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::size_t p = 0; p < row.count; ++p) {
      sum = hn::MulAdd(hn::Set(d, static_cast<T>(row.weights[p])), load(d, reinterpret_cast<const Part*>(row.parts[p]) + i, n),
                       sum);
    }
    store(d, sum, reinterpret_cast<Out*>(row.out) + i, n);
  });
}

void merge_row(const MergeRow& row) {
  if (row.out_type == DType::f64) return merge_typed<double, double>(row);
  if (row.out_type == DType::f32) {
    return row.part_type == DType::f32 ? merge_typed<float, float>(row) : merge_typed<float, bf16>(row);
  }
  return row.part_type == DType::f32 ? merge_typed<bf16, float>(row) : merge_typed<bf16, bf16>(row);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(dot);
HWY_EXPORT(merge_row);

namespace {

/// Returns the offset in lse or delta that belongs to row `row` of o, counted in row-major order over [B, S, n].
std::size_t value_offset(const ConstTensor& values, const ConstTensor& o, std::size_t row) {
  const std::size_t number = row % o.size(2);
  const std::size_t token = row / o.size(2) % o.size(1);
  const std::size_t batch = row / o.size(2) / o.size(1);
  return batch * values.stride(0) + number * values.stride(1) + token * values.stride(2);
}

template <class T>
void merge_views(const Compute& on, double scale, const Tensor& o, const Tensor& lse, std::span<const ConstTensor> part_o,
                 std::span<const ConstTensor> part_lse) {
  using Lse = flash::LogSumExp<T>;
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  for_rows(on, row_count(o), o.size(3) * part_o.size(), [&](std::size_t first, std::size_t end) {
    MergeRow row{};
    std::array<Lse, kMaxParts> seen{};
    row.out_type = o.dtype();
    row.part_type = part_o[0].dtype();
    row.width = o.size(3);
    for (std::size_t r = first; r < end; ++r) {
      T maximum = -kInfinity;
      row.count = 0;
      for (std::size_t p = 0; p < part_o.size(); ++p) {
        const T* value = part_lse[p].as<T>() + value_offset(part_lse[p], o, r);
        if (value[0] == -kInfinity) continue;  // this part saw no key; its output may hold anything
        seen[row.count] = Lse::load(value, flash::numbers_of(part_lse[p]));
        row.parts[row.count++] = part_o[p].data() + row_offset(part_o[p], r) * size_of(row.part_type);
        maximum = value[0] > maximum || std::isnan(value[0]) ? value[0] : maximum;  // a NaN stays
      }
      T sum = 0;
      for (std::size_t p = 0; p < row.count; ++p) {
        const T weight = std::exp(static_cast<T>(scale) * (seen[p].maximum - maximum) + static_cast<T>(seen[p].log_sum));
        row.weights[p] = static_cast<double>(weight);
        sum += weight;
      }
      for (std::size_t p = 0; p < row.count; ++p) row.weights[p] /= static_cast<double>(sum);
      row.out = o.data() + row_offset(o, r) * size_of(o.dtype());
      HWY_DYNAMIC_DISPATCH(merge_row)(row);
      (row.count == 0 ? Lse::of_nothing() : Lse::of(maximum, sum))
          .store(lse.as<T>() + value_offset(lse, o, r), flash::numbers_of(lse), scale);
    }
  });
}

template <class T>
void round_views(double scale, const Tensor& one, const ConstTensor& two) {
  for (std::size_t b = 0; b < one.size(0); ++b) {
    for (std::size_t number = 0; number < one.size(1); ++number) {
      const Tensor to = one.select(0, b).select(0, number);
      const ConstTensor from = two.select(0, b).select(0, number);
      for (std::size_t s = 0; s < to.size(0); ++s)
        flash::LogSumExp<T>::load(from.as<T>() + s * from.stride(0), 2).store(to.as<T>() + s * to.stride(0), 1, scale);
    }
  }
}

template <class T>
bool any_lost(const ConstTensor& lse, const ConstTensor& o) {
  for (std::size_t b = 0; b < lse.size(0); ++b) {
    for (std::size_t number = 0; number < lse.size(1); ++number) {
      const ConstTensor row = lse.select(0, b).select(0, number);
      for (std::size_t s = 0; s < row.size(0); ++s) {
        if (std::isnan(row.as<T>()[s * row.stride(0)]) && !first_not_finite(flash::head(o, b, number).slice(0, s, 1)))
          return true;
      }
    }
  }
  return false;
}

}  // namespace

void flash_delta(const Compute& on, const Tensor& delta, const ConstTensor& d_o, const ConstTensor& o) {
  require(d_o.dims() == 4 && dense_rows(d_o) && computes(d_o.dtype()), "flash_delta", "do must be [B, S, n, d] of a float type",
          d_o);
  require(same_shape(o, d_o) && dense_rows(o) && (o.dtype() == DType::f64) == (d_o.dtype() == DType::f64) && computes(o.dtype()),
          "flash_delta", "o must have do's shape, f64 with f64", o);
  flash::check_delta("flash_delta", delta, d_o);
  for_rows(on, row_count(o), o.size(3), [&](std::size_t first, std::size_t end) {
    for (std::size_t row = first; row < end; ++row) {
      const double value = HWY_DYNAMIC_DISPATCH(dot)(d_o.dtype(), d_o.data() + row_offset(d_o, row) * size_of(d_o.dtype()),
                                                     o.dtype(), o.data() + row_offset(o, row) * size_of(o.dtype()), o.size(3));
      set_element(row_of(delta, 0), value_offset(delta, o, row), value);
    }
  });
}

void merge_attention(const Compute& on, double scale, const Tensor& o, const Tensor& lse, std::span<const ConstTensor> part_o,
                     std::span<const ConstTensor> part_lse) {
  require(o.dims() == 4 && dense_rows(o) && computes(o.dtype()), "merge_attention", "o must be [B, S, n, d] of a float type", o);
  flash::check_lse("merge_attention", lse, o);
  if (part_o.empty() || part_o.size() != part_lse.size() || part_o.size() > kMaxParts) {
    throw std::invalid_argument("merge_attention: takes 1 to 64 parts, as many outputs as log-sum-exps, not " +
                                std::to_string(part_o.size()) + " and " + std::to_string(part_lse.size()));
  }
  for (std::size_t p = 0; p < part_o.size(); ++p) {
    require(same_shape(part_o[p], o) && dense_rows(part_o[p]) && part_o[p].dtype() == part_o[0].dtype() &&
                summed_in(part_o[p].dtype()) == summed_in(o.dtype()),
            "merge_attention", "the parts must have o's shape and one dtype", part_o[p]);
    flash::check_lse("merge_attention", part_lse[p], o);
  }
  if (lse.dtype() == DType::f64) {
    merge_views<double>(on, scale, o, lse, part_o, part_lse);
  } else {
    merge_views<float>(on, scale, o, lse, part_o, part_lse);
  }
}

void round_lse(double scale, const Tensor& one, const ConstTensor& two) {
  require(one.dims() == 3 && two.dims() == 4 && same_shape(one, two.select(3, 0)) && two.size(3) == 2 && dense_rows(two) &&
              one.dtype() == two.dtype(),
          "round_lse", "lse in one and in two numbers must be [B, n, S] and [B, n, S, 2] of one type", two);
  one.dtype() == DType::f64 ? round_views<double>(scale, one, two) : round_views<float>(scale, one, two);
}

bool has_lost_lse(const ConstTensor& lse, const ConstTensor& o) {
  require(lse.dims() == 3 && flash::has_rows_of(lse, 3, o), "has_lost_lse", "lse must be [B, n, S] of the type of sums", lse);
  return lse.dtype() == DType::f64 ? any_lost<double>(lse, o) : any_lost<float>(lse, o);
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
