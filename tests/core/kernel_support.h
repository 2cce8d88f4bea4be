// What the tests of kernels share: arrays of any float type that oracles read as f64, and the distance between results.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace tsprun::detail::test {

/// Owns a contiguous tensor.
class Array {
 public:
  /// Makes a tensor of zeros.
  Array(DType dtype, std::vector<std::size_t> sizes) : dtype_(dtype), sizes_(std::move(sizes)) {
    std::size_t count = 1;
    for (const std::size_t size : sizes_) count *= size;
    bytes_.resize(count * size_of(dtype));
  }
  /// Returns normally distributed numbers, rounded to the type.
  static Array normal(DType dtype, std::vector<std::size_t> sizes, unsigned seed, double deviation = 1) {
    Array array(dtype, std::move(sizes));
    std::mt19937 generator(seed);
    std::normal_distribution<double> distribution(0, deviation);
    for (std::size_t i = 0; i < array.count(); ++i) array.set(i, distribution(generator));
    return array;
  }

  std::size_t count() const { return bytes_.size() / size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Tensor view() { return {bytes_.data(), dtype_, sizes_}; }
  ConstTensor view() const { return {bytes_.data(), dtype_, sizes_}; }
  double operator[](std::size_t i) const {
    switch (dtype_) {
      case DType::f64: return read<double>(i);
      case DType::f32: return static_cast<double>(read<float>(i));
      default: return static_cast<double>(static_cast<float>(read<bf16>(i)));
    }
  }
  void set(std::size_t i, double value) {
    switch (dtype_) {
      case DType::f64: write(i, value); break;
      case DType::f32: write(i, static_cast<float>(value)); break;
      default: write(i, bf16(static_cast<float>(value))); break;
    }
  }
  std::vector<double> values() const {
    std::vector<double> result(count());
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = (*this)[i];
    return result;
  }
  /// Returns true if type, sizes and bits are the same.
  bool operator==(const Array& other) const { return dtype_ == other.dtype_ && sizes_ == other.sizes_ && bytes_ == other.bytes_; }

 private:
  template <class T>
  T read(std::size_t i) const {
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void write(std::size_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }

  DType dtype_;
  std::vector<std::size_t> sizes_;
  std::vector<std::byte> bytes_;
};

inline DType sums(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

/// ‖actual − expected‖ / ‖expected‖; NaNs and infinities must stand where they are expected.
inline double distance(const Array& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.count(), expected.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i]) || !std::isfinite(actual[i])) {
      if (actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]))) continue;
      ADD_FAILURE() << "element " << i << " is " << actual[i] << ", expected " << expected[i];
      continue;
    }
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / std::max(norm, 1e-300));
}

/// How far a kernel that sums in the type of sums and stores in `dtype` may be from the oracle.
inline double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 2e-6 : 4e-3; }

/// Threads and workspace for kernels under test.
class Bench {
 public:
  explicit Bench(std::size_t threads = 1, std::size_t workspace = std::size_t{24} << 20) : pool_(threads), space_(workspace) {}
  kernels::Compute on() { return {&pool_, space_, {}}; }

 private:
  kernels::Pool pool_;
  std::vector<std::byte> space_;
};

/// Central differences of `loss` in every element of `x`, which must be f64.
template <class Loss>
std::vector<double> finite_differences(Array& x, Loss loss, double step = 1e-5) {
  std::vector<double> gradient(x.count());
  for (std::size_t i = 0; i < x.count(); ++i) {
    const double value = x[i];
    x.set(i, value + step);
    const double above = loss();
    x.set(i, value - step);
    const double below = loss();
    x.set(i, value);
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

/// Σ weights·values: a loss whose gradient in `values` is `weights`.
inline double weighted(const Array& values, const Array& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < values.count(); ++i) sum += values[i] * weights[i];
  return sum;
}

}  // namespace tsprun::detail::test
