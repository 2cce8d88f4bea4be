// Activations against their formulas in f64, backwards against finite differences.

#include "core/kernels/activation.h"
#include "tests/core/kernel_support.h"

#include <numbers>

namespace tsprun::detail::test::activation_kernel_test {
namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x, kernels::Gelu form) {
  if (form == kernels::Gelu::exact) return x * std::erfc(-x / std::numbers::sqrt2) / 2;
  return x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))) / 2;
}

/// Ordinary numbers, and the ends of the exponential's range.
Array inputs(DType dtype, std::size_t count, unsigned seed) {
  Array x = Array::normal(dtype, {count}, seed, 3);
  const double ends[] = {0, -0.0, 30, -30, 88, -88, 120, -120, 1e4, -1e4, 1e-20};
  for (std::size_t i = 0; i < std::size(ends) && i < count; ++i) x.set(i, ends[i]);
  return x;
}

TEST(Swiglu, EqualsTheFormula) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t count : {1U, 7U, 16U, 1001U}) {
      const Array gate = inputs(dtype, count, 1);
      const Array up = Array::normal(dtype, {count}, 2);
      Array y(dtype, {count});
      kernels::swiglu({}, y.view(), gate.view(), up.view());
      for (std::size_t i = 0; i < count; ++i) {
        const double expected = silu(gate[i]) * up[i];
        EXPECT_NEAR(y[i], expected, tolerance(dtype) * std::abs(expected) + 1e-30) << name(dtype) << " gate " << gate[i];
      }
    }
  }
}

TEST(Swiglu, BackwardEqualsFiniteDifferences) {
  Array gate = Array::normal(DType::f64, {3, 21}, 1, 2);
  Array up = Array::normal(DType::f64, {3, 21}, 2);
  const Array dy = Array::normal(DType::f64, {3, 21}, 3);
  Array y(DType::f64, {3, 21});
  const auto loss = [&] {
    kernels::swiglu({}, y.view(), gate.view(), up.view());
    return weighted(y, dy);
  };
  Array dgate(DType::f64, {3, 21});
  Array dup(DType::f64, {3, 21});
  kernels::swiglu_backward({}, dgate.view(), dup.view(), dy.view(), gate.view(), up.view());
  EXPECT_LE(distance(dgate, finite_differences(gate, loss)), 1e-8);
  EXPECT_LE(distance(dup, finite_differences(up, loss)), 1e-8);
}

TEST(Swiglu, BackwardMayOverwriteItsInputs) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Array gate = inputs(dtype, 333, 1);
    Array up = Array::normal(dtype, {333}, 2);
    const Array dy = Array::normal(dtype, {333}, 3);
    Array dgate(dtype, {333});
    Array dup(dtype, {333});
    kernels::swiglu_backward({}, dgate.view(), dup.view(), dy.view(), gate.view(), up.view());
    kernels::swiglu_backward({}, gate.view(), up.view(), dy.view(), gate.view(), up.view());
    EXPECT_TRUE(gate == dgate);
    EXPECT_TRUE(up == dup);
    for (std::size_t i = 0; i < 333; ++i) EXPECT_TRUE(std::isfinite(dgate[i])) << i;
  }
}

TEST(Gelu, EqualsTheFormula) {
  for (const kernels::Gelu form : {kernels::Gelu::exact, kernels::Gelu::tanh}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Array x = inputs(dtype, 1001, 1);
      Array y(dtype, {1001});
      kernels::gelu({}, y.view(), x.view(), form);
      for (std::size_t i = 0; i < x.count(); ++i) {
        const double expected = gelu(x[i], form);
        // Tails below 1e-8 of x are noise in f32.
        const double floor = dtype == DType::f64 ? 1e-16 : 2e-8;
        EXPECT_NEAR(y[i], expected, std::max(tolerance(dtype), 1e-12) * std::abs(expected) + floor * std::abs(x[i]))
            << "x " << x[i];
      }
    }
  }
}

TEST(Gelu, BackwardEqualsFiniteDifferences) {
  for (const kernels::Gelu form : {kernels::Gelu::exact, kernels::Gelu::tanh}) {
    Array x = Array::normal(DType::f64, {57}, 1, 2);
    const Array dy = Array::normal(DType::f64, {57}, 2);
    Array y(DType::f64, {57});
    Array dx(DType::f64, {57});
    kernels::gelu_backward({}, dx.view(), dy.view(), x.view(), form);
    const std::vector<double> expected = finite_differences(x, [&] {
      kernels::gelu({}, y.view(), x.view(), form);
      return weighted(y, dy);
    });
    EXPECT_LE(distance(dx, expected), 1e-8);
    // f32 against f64 on the same numbers.
    Array x32(DType::f32, {57});
    Array dy32(DType::f32, {57});
    for (std::size_t i = 0; i < 57; ++i) {
      x32.set(i, x[i]);
      dy32.set(i, dy[i]);
    }
    Array dx32(DType::f32, {57});
    kernels::gelu_backward({}, dx32.view(), dy32.view(), x32.view(), form);
    EXPECT_LE(distance(dx32, dx.values()), 2e-6);
  }
}

TEST(Geglu, EqualsTheFormula) {
  for (const kernels::Gelu form : {kernels::Gelu::exact, kernels::Gelu::tanh}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Array gate = inputs(dtype, 1001, 1);
      const Array up = Array::normal(dtype, {1001}, 2);
      Array y(dtype, {1001});
      kernels::geglu({}, y.view(), gate.view(), up.view(), form);
      for (std::size_t i = 0; i < gate.count(); ++i) {
        const double expected = gelu(gate[i], form) * up[i];
        const double floor = dtype == DType::f64 ? 1e-16 : 2e-8;
        EXPECT_NEAR(y[i], expected, std::max(tolerance(dtype), 1e-12) * std::abs(expected) + floor * std::abs(gate[i] * up[i]))
            << name(dtype) << " gate " << gate[i];
      }
    }
  }
}

TEST(Geglu, BackwardEqualsFiniteDifferencesAndMayOverwriteItsInputs) {
  for (const kernels::Gelu form : {kernels::Gelu::exact, kernels::Gelu::tanh}) {
    Array gate = Array::normal(DType::f64, {3, 21}, 1, 2);
    Array up = Array::normal(DType::f64, {3, 21}, 2);
    const Array dy = Array::normal(DType::f64, {3, 21}, 3);
    Array y(DType::f64, {3, 21});
    const auto loss = [&] {
      kernels::geglu({}, y.view(), gate.view(), up.view(), form);
      return weighted(y, dy);
    };
    Array dgate(DType::f64, {3, 21});
    Array dup(DType::f64, {3, 21});
    kernels::geglu_backward({}, dgate.view(), dup.view(), dy.view(), gate.view(), up.view(), form);
    EXPECT_LE(distance(dgate, finite_differences(gate, loss)), 1e-8);
    EXPECT_LE(distance(dup, finite_differences(up, loss)), 1e-8);
    kernels::geglu_backward({}, gate.view(), up.view(), dy.view(), gate.view(), up.view(), form);
    EXPECT_TRUE(gate == dgate);
    EXPECT_TRUE(up == dup);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::activation_kernel_test
