// gemm() of two bf16 operands in bf16 units: against f64, against the order of sums that pair_panels.h promises, and where it is
// chosen.

#include "core/kernels/gemm.h"
#include "core/kernels/level.h"
#include "core/kernels/pair_panels.h"
#include "tests/core/kernel_support.h"

#include <limits>

namespace tsprun::detail::test::gemm_pairs_kernel_test {
namespace {

using kernels::Level;
using kernels::Write;

/// A product of bf16 operands and its result; A is stored as [m, k] or [k, m], B as [k, n] or [n, k].
struct Product {
  std::size_t m, n, k;
  bool a_transposed, b_transposed;
  Array a = Array::normal(DType::bf16, a_transposed ? std::vector{k, m} : std::vector{m, k}, 1);
  Array b = Array::normal(DType::bf16, b_transposed ? std::vector{n, k} : std::vector{k, n}, 2);

  double a_of(std::size_t i, std::size_t l) const { return a[a_transposed ? l * m + i : i * k + l]; }
  double b_of(std::size_t l, std::size_t j) const { return b[b_transposed ? j * k + l : l * n + j]; }
  void into(Array& c, Write write, std::size_t threads = 1) const {
    const ConstTensor a_view = a_transposed ? a.view().transposed(0, 1) : a.view();
    const ConstTensor b_view = b_transposed ? b.view().transposed(0, 1) : b.view();
    Bench bench(threads, kernels::gemm_workspace(c.view(), a_view, b_view, threads));
    kernels::gemm(bench.on(), c.view(), a_view, b_view, write);
  }
};

/// All ways in which operands may lie, of sizes around registers, panels, stretches of the sum and tiles.
std::vector<Product> products() {
  std::vector<Product> all;
  for (const auto& [m, n, k] : {std::tuple{5U, 1U, 1U},
                                {7U, 15U, 2U},
                                {8U, 16U, 3U},
                                {9U, 17U, 31U},
                                {17U, 33U, 32U},
                                {16U, 48U, 33U},
                                {25U, 49U, 255U},
                                {5U, 97U, 257U},
                                {33U, 70U, 513U},
                                {530U, 20U, 40U},
                                {20U, 1100U, 40U},
                                {1100U, 20U, 300U}}) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) all.push_back({m, n, k, a, b});
    }
  }
  return all;
}

TEST(GemmPairs, DiffersFromF64ByNoMoreThanSumsInF32) {
  for (const Product& product : products()) {
    // Their sums, and those of their sizes.
    const std::size_t k = product.k;
    std::vector<double> rows(product.m * k);
    std::vector<double> columns(product.n * k);
    for (std::size_t l = 0; l < k; ++l) {
      for (std::size_t i = 0; i < product.m; ++i) rows[i * k + l] = product.a_of(i, l);
      for (std::size_t j = 0; j < product.n; ++j) columns[j * k + l] = product.b_of(l, j);
    }
    std::vector<double> sums(product.m * product.n);
    std::vector<double> sizes(product.m * product.n);
    for (std::size_t at = 0; at < sums.size(); ++at) {
      for (std::size_t l = 0; l < k; ++l) {
        const double summand = rows[at / product.n * k + l] * columns[at % product.n * k + l];
        sums[at] += summand;
        sizes[at] += std::abs(summand);
      }
    }
    for (const Write write : {Write::replace, Write::add}) {
      Array c = Array::normal(DType::f32, {product.m, product.n}, 3);
      const Array before = c;
      product.into(c, write);
      // Each of the k additions rounds by at most half a unit in the last place of a partial sum, which is below Σ|a·b|.
      const double unit = std::ldexp(1.0, -24) * static_cast<double>(product.k + 1);
      for (std::size_t i = 0; i < product.m; ++i) {
        for (std::size_t j = 0; j < product.n; ++j) {
          const double begin = write == Write::add ? before[i * product.n + j] : 0;
          const double sum = begin + sums[i * product.n + j];
          const double size = std::abs(begin) + sizes[i * product.n + j];
          ASSERT_NEAR(c[i * product.n + j], sum, unit * size + 1e-30)
              << product.m << "x" << product.n << "x" << product.k << " transposed " << product.a_transposed
              << product.b_transposed << " at " << i << ", " << j;
        }
      }
    }
  }
}

/// Checks all products, which add to C, against `add`(sum, product, i, j): element (i, j) added up in the order of a level.
template <class Add>
void expect_order(const Add& add) {
  for (const Product& product : products()) {
    Array c = Array::normal(DType::f32, {product.m, product.n}, 3);
    Array expected = c;
    product.into(c, Write::add);
    for (std::size_t i = 0; i < product.m; ++i) {
      for (std::size_t j = 0; j < product.n; ++j) {
        const std::size_t at = i * product.n + j;
        expected.set(at, static_cast<double>(add(static_cast<float>(expected[at]), product, i, j)));
      }
    }
    EXPECT_TRUE(c == expected) << product.m << "x" << product.n << "x" << product.k;
  }
}

TEST(GemmPairs, AddsOddThenEvenProductsInAscendingOrder) {
  if (kernels::best_level() < Level::avx512_bf16) GTEST_SKIP() << "this machine has no AVX512_BF16";
  kernels::set_level(Level::avx512_bf16);
  expect_order([](float sum, const Product& of, std::size_t i, std::size_t j) {
    for (std::size_t pair = 0; pair < of.k; pair += 2) {
      for (const std::size_t l : {pair + 1, pair}) {
        if (l < of.k) sum = std::fmaf(static_cast<float>(of.a_of(i, l)), static_cast<float>(of.b_of(l, j)), sum);
      }
    }
    return sum;
  });
}

TEST(GemmPairs, AddsGroupsOf32SummandsInTiles) {
  if (kernels::best_level() < Level::amx_bf16) GTEST_SKIP() << "this machine has no AMX";
  kernels::set_level(Level::amx_bf16);
  expect_order([](float sum, const Product& of, std::size_t i, std::size_t j) {
    for (std::size_t group = 0; group < of.k; group += 32) {
      float even = 0;
      float odd = 0;
      for (std::size_t l = group; l < std::min(group + 32, of.k); ++l) {
        float& half = l % 2 == 0 ? even : odd;
        half = std::fmaf(static_cast<float>(of.a_of(i, l)), static_cast<float>(of.b_of(l, j)), half);
      }
      sum += even + odd;
    }
    return sum;
  });
}

TEST(GemmPairs, TurnsAnOperandToRowsForTiles) {
  if (kernels::best_level() < Level::avx512_bf16) GTEST_SKIP() << "this machine has no AVX512_BF16";
  for (const std::size_t rows : {1U, 16U, 17U, 40U}) {
    for (const std::size_t depth : {1U, 2U, 31U, 32U, 33U, 70U}) {
      const Array stored = Array::normal(DType::bf16, {depth, rows + 3}, 1);
      const std::size_t step = kernels::round_up(depth, 32) + 32;
      std::vector<bf16> to(rows * step, bf16(7));
      kernels::pairs::turn_to_rows(to.data(), step, stored.view().slice(1, 2, rows).transposed(0, 1));
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t l = 0; l < step; ++l) {
          const double beyond = l < kernels::round_up(depth, 32) ? 0 : 7;
          ASSERT_EQ(static_cast<float>(to[i * step + l]), l < depth ? stored[l * (rows + 3) + 2 + i] : beyond)
              << rows << "x" << depth << " at " << i << ", " << l;
        }
      }
    }
  }
}

TEST(GemmPairs, RoundsABf16OutputOnceAndForAnyNumberOfThreads) {
  const Product product{300, 500, 700, true, true};
  for (const Write write : {Write::replace, Write::add}) {
    const Array before = Array::normal(DType::bf16, {product.m, product.n}, 3);
    Array sums(DType::f32, {product.m, product.n});
    product.into(sums, Write::replace);
    Array rounded(DType::bf16, {product.m, product.n});
    for (std::size_t i = 0; i < sums.count(); ++i) {
      const auto sum = static_cast<float>(sums[i]);
      rounded.set(i, static_cast<double>(write == Write::add ? static_cast<float>(before[i]) + sum : sum));
    }
    for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
      Array c = before;
      product.into(c, write, threads);
      EXPECT_TRUE(c == rounded) << threads;
    }
  }
}

TEST(GemmPairs, ReadsAndWritesNothingOutsideOfSlices) {
  constexpr double kPoison = std::numeric_limits<double>::quiet_NaN();
  Array a(DType::bf16, {30, 41});
  Array b(DType::bf16, {41, 60});
  Array c(DType::f32, {30, 60});
  for (Array* array : {&a, &b, &c}) {
    for (std::size_t i = 0; i < array->count(); ++i) array->set(i, kPoison);
  }
  // Rows 3 … 19 and summands 5 … 33 of A, columns 7 … 57 of B.
  for (std::size_t i = 3; i < 20; ++i) {
    for (std::size_t l = 5; l < 34; ++l) a.set(i * 41 + l, 1);
  }
  for (std::size_t l = 5; l < 34; ++l) {
    for (std::size_t j = 7; j < 58; ++j) b.set(l * 60 + j, 0.5);
  }
  const auto inside = [](Array& of, std::size_t row, std::size_t rows, std::size_t column, std::size_t columns) {
    return of.view().slice(0, row, rows).slice(1, column, columns);
  };
  Bench bench;
  kernels::gemm(bench.on(), inside(c, 3, 17, 7, 51), inside(a, 3, 17, 5, 29), inside(b, 5, 29, 7, 51));
  for (std::size_t i = 0; i < c.count(); ++i) {
    const bool written = i / 60 >= 3 && i / 60 < 20 && i % 60 >= 7 && i % 60 < 58;
    EXPECT_EQ(std::isnan(c[i]) ? -1.0 : c[i], written ? 14.5 : -1.0) << i;
  }
}

TEST(GemmPairs, CarriesInfinityAndNaNToTheirRowsAndColumnsAlone) {
  Product product{20, 60, 35, false, false};
  product.a.set(4 * 35 + 34, std::numeric_limits<double>::infinity());
  product.b.set(2 * 60 + 50, std::numeric_limits<double>::quiet_NaN());
  Array c(DType::f32, {20, 60});
  product.into(c, Write::replace);
  for (std::size_t i = 0; i < c.count(); ++i) EXPECT_EQ(std::isfinite(c[i]), i / 60 != 4 && i % 60 != 50) << i;
}

TEST(GemmPairs, RoundsAnF32OperandBesideABf16One) {
  if (kernels::level() < Level::avx512_bf16) GTEST_SKIP() << "this machine has no AVX512_BF16";
  const auto in_f32 = [](const Array& of, const std::vector<std::size_t>& shape) {
    Array wide(DType::f32, shape);
    for (std::size_t i = 0; i < wide.count(); ++i) wide.set(i, of[i] * (1 + (i % 3 == 0 ? 0x1p-10 : 0)));  // rounds to the same
    return wide;
  };
  for (const Product& product : products()) {
    for (const bool wide_a : {true, false}) {
      Product mixed = product;
      if (wide_a) mixed.a = in_f32(product.a, mixed.a_transposed ? std::vector{mixed.k, mixed.m} : std::vector{mixed.m, mixed.k});
      else mixed.b = in_f32(product.b, mixed.b_transposed ? std::vector{mixed.n, mixed.k} : std::vector{mixed.k, mixed.n});
      for (const Write write : {Write::replace, Write::add}) {
        Array expected = Array::normal(DType::f32, {product.m, product.n}, 3);
        Array c = expected;
        product.into(expected, write);
        mixed.into(c, write, 2);
        for (std::size_t i = 0; i < c.count(); ++i) {
          ASSERT_EQ(c[i], expected[i]) << product.m << "x" << product.n << "x" << product.k << " element " << i;
        }
      }
    }
  }
}

TEST(GemmPairs, NeedsTheSameWorkspaceAtEveryLevel) {
  const Array x(DType::bf16, {200, 300});
  const Array w(DType::bf16, {300, 100});
  Array y(DType::bf16, {200, 100});
  const std::size_t before = kernels::gemm_workspace(y.view(), x.view(), w.view(), 2);
  kernels::set_level(Level::baseline);
  EXPECT_EQ(kernels::gemm_workspace(y.view(), x.view(), w.view(), 2), before);
  Bench bench(2, before);
  EXPECT_NO_THROW(kernels::gemm(bench.on(), y.view(), x.view(), w.view()));
}

TEST(GemmPairs, TicksBetweenStretches) {
  const Product product{64, 64, 3000, false, false};
  Array c(DType::f32, {64, 64});
  Bench bench;
  kernels::Compute on = bench.on();
  int ticks = 0;
  const auto count = [&] { ++ticks; };
  on.tick = count;
  kernels::gemm(on, c.view(), product.a.view(), product.b.view());
  EXPECT_GE(ticks, 5);
}

}  // namespace
}  // namespace tsprun::detail::test::gemm_pairs_kernel_test
