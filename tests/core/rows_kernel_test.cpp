// Embedding rows and elementwise kernels against plain loops.

#include "core/kernels/elementwise.h"
#include "core/kernels/embedding.h"
#include "tests/core/kernel_support.h"

namespace tsprun::detail::test::rows_kernel_test {
namespace {

TEST(Embedding, GathersRowsByNumber) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Array table = Array::normal(dtype, {7, 37}, 1);
    const std::vector<std::uint32_t> rows = {6, 0, 3, 3, 5};
    Array out(dtype, {5, 37});
    kernels::gather_rows({}, out.view(), table.view(), rows);
    for (std::size_t i = 0; i < out.count(); ++i) EXPECT_EQ(out[i], table[rows[i / 37] * 37 + i % 37]);
  }
}

TEST(Embedding, ScattersSumsInTheOrderOfTokens) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Array values = Array::normal(dtype, {50, 600}, 1);
    std::vector<std::uint32_t> rows;
    for (std::uint32_t t = 0; t < 50; ++t) rows.push_back(t * 7 % 4);
    Array table = Array::normal(DType::f32, {5, 600}, 2);
    Array expected = table;
    for (std::size_t t = 0; t < 50; ++t) {
      for (std::size_t i = 0; i < 600; ++i) {
        const std::size_t at = rows[t] * 600 + i;
        expected.set(at, static_cast<double>(static_cast<float>(expected[at]) + static_cast<float>(values[t * 600 + i])));
      }
    }
    Bench bench(3);
    kernels::scatter_add_rows(bench.on(), table.view(), values.view(), rows);
    EXPECT_TRUE(table == expected);
  }
}

TEST(Embedding, RefusesARowThatTheTableLacks) {
  Array table(DType::f32, {3, 4});
  Array out(DType::f32, {1, 4});
  EXPECT_THROW(kernels::gather_rows({}, out.view(), table.view(), std::vector<std::uint32_t>{3}), std::invalid_argument);
  EXPECT_THROW(kernels::scatter_add_rows({}, table.view(), out.view(), std::vector<std::uint32_t>{3}), std::invalid_argument);
}

TEST(Elementwise, ConvertsBetweenTypesOnStridedViews) {
  const Array from = Array::normal(DType::f32, {3, 5, 41}, 1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Array to(dtype, {5, 3, 20});
    kernels::convert({}, to.view().transposed(0, 1), from.view().slice(2, 11, 20));
    for (std::size_t b = 0; b < 3; ++b) {
      for (std::size_t s = 0; s < 5; ++s) {
        for (std::size_t i = 0; i < 20; ++i) {
          const auto value = static_cast<float>(from[(b * 5 + s) * 41 + 11 + i]);
          const double expected =
              dtype == DType::f32 ? static_cast<double>(value) : static_cast<double>(static_cast<float>(bf16(value)));
          EXPECT_EQ(to[(s * 3 + b) * 20 + i], expected);
        }
      }
    }
  }
}

TEST(Elementwise, KeepsNansAndInfinitiesWhenItRounds) {
  Array from(DType::f32, {20});
  for (std::size_t i = 0; i < 20; ++i) from.set(i, i % 2 == 0 ? std::nan("") : std::numeric_limits<double>::infinity());
  Array to(DType::bf16, {20});
  kernels::convert({}, to.view(), from.view());
  for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(i % 2 == 0 ? std::isnan(to[i]) : std::isinf(to[i]));
}

TEST(Elementwise, RoundsAsTheScalarTypeDoes) {
  Array from(DType::f32, {4096});
  for (std::size_t i = 0; i < 4096; ++i) from.set(i, 1 + static_cast<double>(i) / 4096 / 8);  // ties and their neighbours
  Array to(DType::bf16, {4096});
  kernels::convert({}, to.view(), from.view());
  for (std::size_t i = 0; i < 4096; ++i) {
    EXPECT_EQ(to[i], static_cast<double>(static_cast<float>(bf16(static_cast<float>(from[i])))));
  }
}

TEST(Elementwise, AddsMixedTypes) {
  const Array a = Array::normal(DType::bf16, {1000}, 1);
  const Array b = Array::normal(DType::f32, {1000}, 2);
  Array sum(DType::f32, {1000});
  kernels::add({}, sum.view(), a.view(), b.view());
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(sum[i], static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(b[i])));
  }
  kernels::add({}, sum.view(), sum.view(), b.view());
  EXPECT_NEAR(sum[3], a[3] + 2 * b[3], 1e-6);
  kernels::fill_zero({}, sum.view().slice(0, 0, 999));
  EXPECT_EQ(sum[998], 0);
  EXPECT_NE(sum[999], 0);
}

TEST(Elementwise, MultipliesAndAddsMultiplesInMixedTypes) {
  for (const DType to : {DType::f32, DType::bf16}) {
    for (const DType from : {DType::f32, DType::bf16}) {
      const Array a = Array::normal(from, {3, 37}, 1);
      const Array b = Array::normal(DType::f32, {3, 37}, 2);
      Array sum(to, {3, 37});
      Array multiple(to, {3, 37});
      kernels::add_multiple({}, sum.view(), a.view(), b.view(), 0.22);
      kernels::multiply({}, multiple.view(), a.view(), -12.5);
      for (std::size_t i = 0; i < a.count(); ++i) {
        EXPECT_NEAR(sum[i], a[i] + 0.22 * b[i], tolerance(to) * (std::abs(a[i]) + std::abs(b[i]))) << i;
        EXPECT_NEAR(multiple[i], -12.5 * a[i], tolerance(to) * 12.5 * std::abs(a[i])) << i;
      }
    }
  }
  Array wide = Array::normal(DType::f64, {70'000}, 3);  // several tasks, in place
  const std::vector<double> before = wide.values();
  kernels::add_multiple({}, wide.view(), wide.view(), wide.view(), 2);
  kernels::multiply({}, wide.view(), wide.view(), 0.25);
  for (std::size_t i = 0; i < before.size(); ++i) ASSERT_DOUBLE_EQ(wide[i], 0.75 * before[i]) << i;
}

TEST(Elementwise, RefusesToMixF64WithOthers) {
  Array a(DType::f64, {4});
  Array b(DType::f32, {4});
  EXPECT_THROW(kernels::convert({}, a.view(), b.view()), std::invalid_argument);
  EXPECT_THROW(kernels::add({}, b.view(), b.view(), a.view()), std::invalid_argument);
}

}  // namespace
}  // namespace tsprun::detail::test::rows_kernel_test
