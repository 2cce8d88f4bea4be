// Biases and their gradients against plain loops in f64, and against finite differences.

#include "core/kernels/bias.h"
#include "tests/core/kernel_support.h"

namespace tsprun::detail::test::bias_kernel_test {
namespace {

TEST(Bias, IsAddedToEveryRowOfAStridedView) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t n : {1U, 7U, 64U, 301U}) {
      Array x = Array::normal(dtype, {5, n + 9}, 1);
      const Array bias = Array::normal(dtype, {n}, 2);
      std::vector<double> expected = x.values();
      for (std::size_t r = 0; r < 5; ++r) {
        for (std::size_t i = 0; i < n; ++i) expected[r * (n + 9) + 4 + i] += bias[i];
      }
      kernels::add_bias({}, x.view().slice(1, 4, n), bias.view());
      EXPECT_LE(distance(x, expected), tolerance(dtype)) << n;
    }
  }
}

TEST(Bias, GradientIsAddedToWhatIsThere) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t n : {1U, 13U, 700U}) {
      const Array dy = Array::normal(dtype, {17, n}, 1);
      Array dbias = Array::normal(sums(dtype), {n}, 2);
      std::vector<double> expected = dbias.values();
      for (std::size_t r = 0; r < 17; ++r) {
        for (std::size_t i = 0; i < n; ++i) expected[i] += dy[r * n + i];
      }
      Bench bench(3);
      kernels::bias_backward(bench.on(), dbias.view(), dy.view());
      EXPECT_LE(distance(dbias, expected), tolerance(sums(dtype))) << n;
    }
  }
}

TEST(Bias, GradientEqualsFiniteDifferences) {
  const Array x = Array::normal(DType::f64, {6, 11}, 1);
  Array bias = Array::normal(DType::f64, {11}, 2);
  const Array dy = Array::normal(DType::f64, {6, 11}, 3);
  const auto loss = [&] {
    Array y = x;
    kernels::add_bias({}, y.view(), bias.view());
    return weighted(y, dy);
  };
  Array dbias(DType::f64, {11});
  kernels::bias_backward({}, dbias.view(), dy.view());
  EXPECT_LE(distance(dbias, finite_differences(bias, loss)), 1e-8);
}

TEST(Bias, RefusesShapesAndTypesThatDontFit) {
  Array x(DType::f32, {3, 4});
  Array short_bias(DType::f32, {3});
  Array wide_bias(DType::f64, {4});
  Array narrow(DType::bf16, {4});
  EXPECT_THROW(kernels::add_bias({}, x.view(), short_bias.view()), std::invalid_argument);
  EXPECT_THROW(kernels::add_bias({}, x.view(), wide_bias.view()), std::invalid_argument);
  EXPECT_THROW(kernels::bias_backward({}, narrow.view(), x.view()), std::invalid_argument);
}

}  // namespace
}  // namespace tsprun::detail::test::bias_kernel_test
