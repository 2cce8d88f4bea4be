// Loops that the compiler turns into vector instructions of each target.
#include "core/kernels/flash_dropout.h"

#include "core/kernels/dropout.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/flash_dropout.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tsp::kernels::flash {
namespace HWY_NAMESPACE {

/// Of key `key`: one number of each query's sequence. Numbers are cut to their upper 53 bits.
template <class T>
HWY_INLINE void keep(const std::uint64_t* queries, std::size_t count, std::uint64_t key, std::uint64_t threshold, T factor,
                     T* factors) {
  constexpr int kUnusedBits = 11;
  for (std::size_t i = 0; i < count; ++i) {
    factors[i] = (split_mix(queries[i], key) >> kUnusedBits) >= threshold ? factor : T{0};
  }
}

template <class T>
HWY_INLINE void multiply(T* row, const T* factors, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) row[i] *= factors[i];
}

void keep_f32(const std::uint64_t* queries, std::size_t count, std::uint64_t key, std::uint64_t threshold, float factor,
              float* factors) {
  keep(queries, count, key, threshold, factor, factors);
}
void keep_f64(const std::uint64_t* queries, std::size_t count, std::uint64_t key, std::uint64_t threshold, double factor,
              double* factors) {
  keep(queries, count, key, threshold, factor, factors);
}
void multiply_f32(float* row, const float* factors, std::size_t count) { multiply(row, factors, count); }
void multiply_f64(double* row, const double* factors, std::size_t count) { multiply(row, factors, count); }

}  // namespace HWY_NAMESPACE
}  // namespace tsp::kernels::flash
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsp::kernels::flash {

HWY_EXPORT(keep_f32);
HWY_EXPORT(keep_f64);
HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);

TileDropout::TileDropout(const AttentionDropout& of, std::size_t batch, std::size_t head)
    : of_(of),
      head_key_(split_mix(split_mix(of.draw.key, of.first_sequence + batch), of.first_head + head)),
      threshold_(static_cast<std::uint64_t>(std::ceil(of.draw.probability * 0x1p53))),
      factor_(1 / (1 - of.draw.probability)) {}

void TileDropout::take_queries(std::size_t first, std::size_t count) {
  count_ = count;
  for (std::size_t i = 0; i < count; ++i) queries_[i] = split_mix(head_key_, of_.queries.of(first + i));
}

void TileDropout::factors(std::size_t key, float* factors) const {
  HWY_DYNAMIC_DISPATCH(keep_f32)
  (queries_.data(), count_, of_.keys.of(key), threshold_, static_cast<float>(factor_), factors);
}
void TileDropout::factors(std::size_t key, double* factors) const {
  HWY_DYNAMIC_DISPATCH(keep_f64)(queries_.data(), count_, of_.keys.of(key), threshold_, factor_, factors);
}

void multiply_row(float* row, const float* factors, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_f32)(row, factors, count);
}
void multiply_row(double* row, const double* factors, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_f64)(row, factors, count);
}

}  // namespace tsp::kernels::flash

#endif  // HWY_ONCE
