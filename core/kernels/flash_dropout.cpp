// Dropout factors of tiles. The loops are written so that the compiler vectorises them for each of Highway's targets.
#include "core/kernels/flash_dropout.h"

#include "core/kernels/dropout.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/flash_dropout.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include <hwy/highway.h>

#ifndef TSP_KERNELS_FLASH_DRAWS
#define TSP_KERNELS_FLASH_DRAWS
namespace tsprun::detail::kernels::flash {
/// Parameters of one tile's draws.
template <class T>
struct Draws {
  const std::uint64_t* beginnings;  // seed of each query's draws
  std::size_t queries;
  Positions positions;  // of keys
  std::size_t first_key;
  std::size_t keys;
  std::uint64_t threshold;
  T factor;
  T* factors;
  std::size_t step;
};
}  // namespace tsprun::detail::kernels::flash
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels::flash {
namespace HWY_NAMESPACE {

/// Returns `factor` if the upper 53 bits of the draw are at least `threshold`, otherwise 0. Arguments are passed by value rather
/// than in a reference to Draws: the compiler would have to assume that the loops' writes change them, and wouldn't vectorise.
template <class T>
HWY_INLINE T factor_of(std::uint64_t beginning, std::uint64_t position, std::uint64_t threshold, T factor) {
  constexpr int kUnusedBits = 11;
  return (split_mix(beginning, position) >> kUnusedBits) >= threshold ? factor : T{0};
}

template <class T>
HWY_INLINE void by_key(Draws<T> draws) {
  for (std::size_t j = 0; j < draws.keys; ++j) {
    const std::uint64_t position = draws.positions.of(draws.first_key + j);
    T* HWY_RESTRICT to = draws.factors + j * draws.step;
    for (std::size_t i = 0; i < draws.queries; ++i) {
      to[i] = factor_of(draws.beginnings[i], position, draws.threshold, draws.factor);
    }
  }
}

template <class T>
HWY_INLINE void by_query(Draws<T> draws) {
  for (std::size_t i = 0; i < draws.queries; ++i) {
    const std::uint64_t beginning = draws.beginnings[i];
    T* HWY_RESTRICT to = draws.factors + i * draws.step;
    for (std::size_t j = 0; j < draws.keys; ++j) {
      to[j] = factor_of(beginning, draws.positions.of(draws.first_key + j), draws.threshold, draws.factor);
    }
  }
}

template <class T>
HWY_INLINE void multiply(T* values, const T* factors, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factors[i];
}

void by_key_f32(const Draws<float>& draws) { by_key(draws); }
void by_key_f64(const Draws<double>& draws) { by_key(draws); }
void by_query_f32(const Draws<float>& draws) { by_query(draws); }
void by_query_f64(const Draws<double>& draws) { by_query(draws); }
void multiply_f32(float* values, const float* factors, std::size_t count) { multiply(values, factors, count); }
void multiply_f64(double* values, const double* factors, std::size_t count) { multiply(values, factors, count); }

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels::flash
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels::flash {

HWY_EXPORT(by_key_f32);
HWY_EXPORT(by_key_f64);
HWY_EXPORT(by_query_f32);
HWY_EXPORT(by_query_f64);
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

template <class T>
Draws<T> TileDropout::draws(std::size_t query, std::size_t queries, std::size_t first, std::size_t count, T* factors,
                            std::size_t step) const {
  return {queries_.data() + query, queries, of_.keys, first, count, threshold_, static_cast<T>(factor_), factors, step};
}
void TileDropout::factors_by_key(std::size_t first, std::size_t count, float* factors, std::size_t step) const {
  HWY_DYNAMIC_DISPATCH(by_key_f32)(draws(0, count_, first, count, factors, step));
}
void TileDropout::factors_by_key(std::size_t first, std::size_t count, double* factors, std::size_t step) const {
  HWY_DYNAMIC_DISPATCH(by_key_f64)(draws(0, count_, first, count, factors, step));
}
void TileDropout::factors_by_query(std::size_t query, std::size_t queries, std::size_t first, std::size_t count, float* factors,
                                   std::size_t step) const {
  HWY_DYNAMIC_DISPATCH(by_query_f32)(draws(query, queries, first, count, factors, step));
}
void TileDropout::factors_by_query(std::size_t query, std::size_t queries, std::size_t first, std::size_t count, double* factors,
                                   std::size_t step) const {
  HWY_DYNAMIC_DISPATCH(by_query_f64)(draws(query, queries, first, count, factors, step));
}

void multiply_all(float* values, const float* factors, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_f32)(values, factors, count);
}
void multiply_all(double* values, const double* factors, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_f64)(values, factors, count);
}

}  // namespace tsprun::detail::kernels::flash

#endif  // HWY_ONCE
