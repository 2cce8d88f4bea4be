// RoPE against rotations written as complex products.

#include "core/kernels/rope.h"
#include "tests/core/kernel_support.h"

#include <complex>

namespace tsprun::detail::test::rope_kernel_test {
namespace {

constexpr double kTheta = 10000;

std::vector<double> frequencies(std::size_t d) {
  std::vector<double> of(d / 2);
  for (std::size_t i = 0; i < of.size(); ++i) of[i] = std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  return of;
}

std::vector<double> naive(const Array& x, const std::vector<std::int64_t>& positions, std::size_t heads, std::size_t d,
                          double direction) {
  std::vector<double> result(x.count());
  for (std::size_t row = 0; row < x.count() / d; ++row) {
    const std::size_t token = row / heads % positions.size();
    for (std::size_t i = 0; i < d / 2; ++i) {
      const double angle =
          static_cast<double>(positions[token]) / std::pow(kTheta, 2.0 * static_cast<double>(i) / static_cast<double>(d));
      const std::complex<double> turned =
          std::complex<double>(x[row * d + i], x[row * d + i + d / 2]) * std::polar(1.0, direction * angle);
      result[row * d + i] = turned.real();
      result[row * d + i + d / 2] = turned.imag();
    }
  }
  return result;
}

TEST(Rope, RotatesHalvesByPosition) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t d : {2U, 10U, 64U}) {
      const std::vector<std::int64_t> positions = {0, 1, 17, 4095, 100000};
      Array x = Array::normal(dtype, {2, 5, 3, d}, 1);
      Array table(sums(dtype), {5, d});
      Bench bench(2);
      kernels::rope_table(bench.on(), table.view(), positions, frequencies(d));
      const std::vector<double> expected = naive(x, positions, 3, d, 1);
      kernels::rope(bench.on(), x.view(), table.view(), kernels::Rotation::forward);
      EXPECT_LE(distance(x, expected), dtype == DType::f64 ? 1e-11 : tolerance(dtype));
      const std::vector<double> back = naive(x, positions, 3, d, -1);
      kernels::rope(bench.on(), x.view(), table.view(), kernels::Rotation::inverse);
      EXPECT_LE(distance(x, back), dtype == DType::f64 ? 1e-11 : tolerance(dtype));
    }
  }
}

TEST(Rope, RotatesHeadsThatAreSlices) {
  const std::vector<std::int64_t> positions = {3, 5};
  Array x = Array::normal(DType::f32, {1, 2, 4, 6}, 1);
  Array whole = x;
  const Array before = x;
  Array table(DType::f32, {2, 6});
  kernels::rope_table({}, table.view(), positions, frequencies(6));
  kernels::rope({}, whole.view(), table.view(), kernels::Rotation::forward);
  kernels::rope({}, x.view().slice(2, 1, 2), table.view(), kernels::Rotation::forward);
  for (std::size_t i = 0; i < x.count(); ++i) {
    const std::size_t head = i / 6 % 4;
    EXPECT_EQ(x[i], head == 1 || head == 2 ? whole[i] : before[i]);
  }
}

TEST(Rope, RefusesAHeadDimThatIsntTwiceTheFrequencies) {
  for (const std::size_t d : {4U, 5U, 8U}) {
    Array table(DType::f32, {1, d});
    EXPECT_THROW(kernels::rope_table({}, table.view(), std::vector<std::int64_t>{0}, frequencies(6)), std::invalid_argument);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::rope_kernel_test
