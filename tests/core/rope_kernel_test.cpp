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
      kernels::rope(bench.on(), x.view(), table.view(), kernels::Rotation::transposed);
      EXPECT_LE(distance(x, back), dtype == DType::f64 ? 1e-11 : tolerance(dtype));
    }
  }
}

/// A rotation of some of a head's dims as the definition has it, a pair at a time, multiplied by a factor of the token.
std::vector<double> naive_part(const Array& x, const std::vector<std::int64_t>& positions, const std::vector<double>& factors,
                               std::size_t heads, std::size_t d, std::size_t r, bool neighbours, double direction) {
  std::vector<double> result;
  for (std::size_t i = 0; i < x.count(); ++i) result.push_back(x[i]);
  for (std::size_t row = 0; row < x.count() / d; ++row) {
    const std::size_t token = row / heads % positions.size();
    for (std::size_t i = 0; i < r / 2; ++i) {
      const std::size_t a = row * d + (neighbours ? 2 * i : i);
      const std::size_t b = neighbours ? a + 1 : a + r / 2;
      const double angle =
          static_cast<double>(positions[token]) / std::pow(kTheta, 2.0 * static_cast<double>(i) / static_cast<double>(r));
      const std::complex<double> turned = std::complex<double>(x[a], x[b]) * std::polar(factors[token], direction * angle);
      result[a] = turned.real();
      result[b] = turned.imag();
    }
  }
  return result;
}

// Numbers of pairs below, at and above those of a vector; the rest of a head keeps its bits.
TEST(Rope, RotatesTheFirstDimsInEitherLayoutTimesAFactor) {
  const std::vector<std::int64_t> positions = {0, 1, 17, 4095, 100000};
  const std::vector<double> factors = {1, 0.5, 1.25, 2, 1};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t r : {2U, 6U, 8U, 16U, 22U, 32U, 46U, 64U}) {
      for (const std::size_t d : {r, r + 3}) {
        for (const bool neighbours : {false, true}) {
          Array x = Array::normal(dtype, {2, 5, 3, d}, static_cast<unsigned>(r + d));
          const Array before = x;
          Array table(sums(dtype), {5, r});
          kernels::rope_table({}, table.view(), positions, frequencies(r), factors);
          for (const auto direction : {kernels::Rotation::forward, kernels::Rotation::transposed}) {
            const double sign = direction == kernels::Rotation::forward ? 1 : -1;
            const std::vector<double> expected = naive_part(x, positions, factors, 3, d, r, neighbours, sign);
            kernels::rope({}, x.view(), table.view(), direction,
                          neighbours ? kernels::RotaryPairs::neighbours : kernels::RotaryPairs::halves);
            EXPECT_LE(distance(x, expected), dtype == DType::f64 ? 1e-11 : tolerance(dtype))
                << name(dtype) << ", " << r << " of " << d << (neighbours ? ", neighbours" : "");
          }
          for (std::size_t i = 0; i < x.count(); ++i) {
            if (i % d >= r) {
              EXPECT_EQ(x[i], before[i]);
            }
          }
        }
      }
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

TEST(Rope, TakesTheRowThatEachTokenNames) {
  const std::vector<std::int64_t> positions = {0, 1, 2, 3, 4, 5};
  const std::vector<std::uint32_t> rows = {0, 1, 0, 5, 4, 0, 0, 3};  // of two sequences
  const std::vector<std::int64_t> of_tokens(rows.begin(), rows.end());
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Array table(sums(dtype), {6, 6});
    kernels::rope_table({}, table.view(), positions, frequencies(6));
    Array x = Array::normal(dtype, {2, 4, 3, 6}, 1);
    const std::vector<double> expected = naive(x, of_tokens, 3, 6, 1);
    kernels::rope({}, x.view(), table.view(), kernels::Rotation::forward, kernels::RotaryPairs::halves, rows);
    EXPECT_LE(distance(x, expected), tolerance(dtype)) << name(dtype);
  }
  Array x(DType::f32, {2, 4, 3, 6});
  Array few(DType::f32, {5, 6});  // of 6 rows that are named
  const auto turn = [&](std::span<const std::uint32_t> named) {
    kernels::rope({}, x.view(), few.view(), kernels::Rotation::forward, kernels::RotaryPairs::halves, named);
  };
  EXPECT_THROW(turn(rows), std::invalid_argument);
  EXPECT_THROW(turn(std::span(rows).first(3)), std::invalid_argument);
}

TEST(Rope, RefusesTablesWiderThanHeadsAndTooFewFactors) {
  Array x(DType::f32, {1, 1, 1, 4});
  Array table(DType::f32, {1, 6});
  EXPECT_THROW(kernels::rope({}, x.view(), table.view(), kernels::Rotation::forward), std::invalid_argument);
  const std::vector<std::int64_t> positions = {0, 1};
  Array two(DType::f32, {2, 6});
  EXPECT_THROW(kernels::rope_table({}, two.view(), positions, frequencies(6), std::vector<double>{1}), std::invalid_argument);
}

TEST(Rope, RefusesAHeadDimThatIsntTwiceTheFrequencies) {
  for (const std::size_t d : {4U, 5U, 8U}) {
    Array table(DType::f32, {1, d});
    EXPECT_THROW(kernels::rope_table({}, table.view(), std::vector<std::int64_t>{0}, frequencies(6)), std::invalid_argument);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::rope_kernel_test
