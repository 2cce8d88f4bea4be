// gemm() against triple loops in f64.

#include "core/kernels/gemm.h"
#include "core/kernels/level.h"
#include "core/kernels/thin_product.h"
#include "tests/core/kernel_support.h"

#include <atomic>

namespace tsprun::detail::test::gemm_kernel_test {
namespace {

struct Case {
  std::size_t m, n, k;
  bool a_transposed, b_transposed;
  DType a, b, c;
};

/// Returns an operand's values with the summands of each sum side by side: of `rows` times `columns`, or stored transposed.
std::vector<double> in_rows(const Array& operand, std::size_t rows, std::size_t columns, bool transposed) {
  std::vector<double> result = operand.values();
  if (!transposed) return result;
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t l = 0; l < columns; ++l) result[i * columns + l] = operand[l * rows + i];
  }
  return result;
}

std::vector<double> naive(const Array& a, const Array& b, const Case& shape) {
  const std::vector<double> rows = in_rows(a, shape.m, shape.k, shape.a_transposed);
  const std::vector<double> columns = in_rows(b, shape.n, shape.k, !shape.b_transposed);
  std::vector<double> result(shape.m * shape.n);
  for (std::size_t i = 0; i < shape.m; ++i) {
    for (std::size_t j = 0; j < shape.n; ++j) {
      double sum = 0;
      for (std::size_t l = 0; l < shape.k; ++l) sum += rows[i * shape.k + l] * columns[j * shape.k + l];
      result[i * shape.n + j] = sum;
    }
  }
  return result;
}

/// Returns what bf16 units take for an f32 operand: all of it rounded, unless the product is thin or they aren't used.
Array as_multiplied(const Array& operand, DType other, bool thin) {
  const bool units = kernels::level() >= kernels::Level::avx512_bf16;
  if (!units || thin || operand.view().dtype() != DType::f32 || other != DType::bf16) return operand;
  Array rounded(DType::bf16, {operand.count()});
  for (std::size_t i = 0; i < operand.count(); ++i) rounded.set(i, operand[i]);
  return rounded;
}

void check(const Case& shape, std::size_t threads = 1) {
  const Array a = Array::normal(shape.a, shape.a_transposed ? std::vector{shape.k, shape.m} : std::vector{shape.m, shape.k}, 1);
  const Array b = Array::normal(shape.b, shape.b_transposed ? std::vector{shape.n, shape.k} : std::vector{shape.k, shape.n}, 2);
  const ConstTensor a_view = shape.a_transposed ? a.view().transposed(0, 1) : a.view();
  const ConstTensor b_view = shape.b_transposed ? b.view().transposed(0, 1) : b.view();
  const bool is_thin = kernels::thin(a_view, b_view);
  const std::vector<double> product = naive(as_multiplied(a, shape.b, is_thin), as_multiplied(b, shape.a, is_thin), shape);
  for (const bool add : {false, true}) {
    Array c = Array::normal(shape.c, {shape.m, shape.n}, 3);
    std::vector<double> expected = product;
    for (std::size_t i = 0; add && i < c.count(); ++i) expected[i] += c[i];
    Bench bench(threads, kernels::gemm_workspace(c.view(), a_view, b_view, threads));
    kernels::gemm(bench.on(), c.view(), a_view, b_view, add ? kernels::Write::add : kernels::Write::replace);
    EXPECT_LE(distance(c, expected), tolerance(shape.c)) << shape.m << "x" << shape.n << "x" << shape.k << " add " << add
                                                         << " transposed " << shape.a_transposed << shape.b_transposed;
  }
}

TEST(Gemm, EqualsTripleLoopsForAllTransposesAndTypes) {
  const DType f64 = DType::f64, f32 = DType::f32, bf = DType::bf16;
  for (const auto& [ta, tb] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    for (const auto& [a, b, c] :
         {std::tuple{f64, f64, f64}, {f32, f32, f32}, {bf, bf, bf}, {bf, bf, f32}, {f32, bf, f32}, {f32, f32, bf}}) {
      check({1, 1, 1, ta, tb, a, b, c});
      check({3, 5, 7, ta, tb, a, b, c});
      check({33, 1, 65, ta, tb, a, b, c});
      check({1, 70, 33, ta, tb, a, b, c});
      check({67, 45, 1, ta, tb, a, b, c});
      check({5, 6, 0, ta, tb, a, b, c});
    }
  }
}

TEST(Gemm, EqualsTripleLoopsWhereThereAreManyTiles) {
  check({300, 290, 910, false, true, DType::f64, DType::f64, DType::f64}, 2);
  check({700, 33, 1000, false, false, DType::f32, DType::f32, DType::f32}, 3);
  check({33, 700, 1000, true, false, DType::bf16, DType::bf16, DType::bf16}, 2);
  check({530, 541, 600, true, true, DType::f32, DType::f32, DType::f32});
  check({100, 1060, 300, true, false, DType::f64, DType::f64, DType::f64}, 2);
  check({300, 1600, 530, true, false, DType::f32, DType::f32, DType::f32});
  check({2100, 20, 530, false, true, DType::f32, DType::f32, DType::f32});
}

TEST(Gemm, EqualsTripleLoopsAtEveryLevel) {
  const DType f64 = DType::f64, f32 = DType::f32, bf = DType::bf16;
  const kernels::Level best = kernels::best_level();
  using enum kernels::Level;
  for (const kernels::Level level : {baseline, avx2, avx512, avx512_bf16, amx_bf16}) {
    if (!kernels::offers(level)) continue;
    kernels::set_level(level);
    for (const auto& [ta, tb] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      for (const auto& [a, b, c] : {std::tuple{f64, f64, f64}, {f32, f32, f32}, {bf, bf, bf}, {f32, bf, f32}}) {
        check({61, 131, 270, ta, tb, a, b, c});  // two stretches, panels and register tiles that aren't full
        check({25, 24, 48, ta, tb, a, b, c});
      }
    }
  }
  kernels::set_level(best);
}

TEST(Gemm, EqualsTripleLoopsForAFewRows) {
  const DType f64 = DType::f64, f32 = DType::f32, bf = DType::bf16;
  for (const bool transposed : {false, true}) {
    for (const auto& [a, b, c] :
         {std::tuple{f64, f64, f64}, {f32, f32, f32}, {bf, bf, bf}, {bf, bf, f32}, {f32, bf, f32}, {f32, f32, bf}}) {
      check({1, 4500, 203, false, transposed, a, b, c}, 2);  // two stretches of columns
      check({2, 130, 4099, false, transposed, a, b, c}, 2);
      check({3, 257, 1030, false, transposed, a, b, c}, 3);
      check({4, 1, 66, false, transposed, a, b, c}, 2);
    }
  }
}

TEST(Gemm, TakesOneColumnOfAWiderMatrixForAFewRows) {
  const Array a = Array::normal(DType::f64, {2, 37}, 1);
  const Array wide = Array::normal(DType::f64, {37, 10}, 2);
  const ConstTensor column = wide.view().slice(1, 3, 1);
  Array c(DType::f64, {2, 1});
  Bench bench(1, kernels::gemm_workspace(c.view(), a.view(), column, 1));
  kernels::gemm(bench.on(), c.view(), a.view(), column);
  for (std::size_t row = 0; row < 2; ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < 37; ++i) sum += a[row * 37 + i] * wide[i * 10 + 3];
    EXPECT_NEAR(c[row], sum, 1e-13);
  }
}

TEST(Gemm, HasTheSameBitsForAnyNumberOfThreadsForAFewRows) {
  for (const bool transposed : {false, true}) {
    const Array a = Array::normal(DType::f32, {2, 2100}, 1);
    const Array b =
        Array::normal(DType::bf16, transposed ? std::vector<std::size_t>{700, 2100} : std::vector<std::size_t>{2100, 700}, 2);
    const ConstTensor b_view = transposed ? b.view().transposed(0, 1) : b.view();
    std::vector<Array> results;
    for (const std::size_t threads : {1U, 2U, 5U}) {
      results.push_back(Array::normal(DType::f32, {2, 700}, 3));
      const Tensor c = results.back().view();
      Bench bench(threads, kernels::gemm_workspace(c, a.view(), b_view, threads));
      kernels::gemm(bench.on(), c, a.view(), b_view);
    }
    for (const Array& result : results) {
      for (std::size_t i = 0; i < 1400; ++i) ASSERT_EQ(result[i], results.front()[i]) << "element " << i;
    }
  }
}

TEST(Gemm, WithoutAnySummandWritesZerosOrAddsNothing) {
  Array a(DType::f32, {4, 0});
  Array b(DType::f32, {0, 3});
  Array c = Array::normal(DType::f32, {4, 3}, 1);
  const Array before = c;
  kernels::gemm({}, c.view(), a.view(), b.view(), kernels::Write::add);
  EXPECT_TRUE(c == before);
  c.set(0, std::nan(""));
  kernels::gemm({}, c.view(), a.view(), b.view());
  EXPECT_TRUE(c == Array(DType::f32, {4, 3}));
}

TEST(Gemm, IgnoresWhatTheOutputHeldBefore) {
  const Array a = Array::normal(DType::f32, {9, 9}, 1);
  Array c(DType::f32, {9, 9});
  Array poisoned(DType::f32, {9, 9});
  for (std::size_t i = 0; i < poisoned.count(); ++i) poisoned.set(i, std::nan(""));
  Bench bench;
  kernels::gemm(bench.on(), c.view(), a.view(), a.view());
  kernels::gemm(bench.on(), poisoned.view(), a.view(), a.view());
  EXPECT_TRUE(c == poisoned);
}

TEST(Gemm, WorksOnSlicesAndLeavesTheRestAlone) {
  const Array a = Array::normal(DType::f64, {10, 20}, 1);
  const Array b = Array::normal(DType::f64, {20, 12}, 2);
  Array c(DType::f64, {10, 12});
  Bench bench;
  kernels::gemm(bench.on(), c.view().slice(0, 2, 5).slice(1, 3, 4), a.view().slice(0, 1, 5).slice(1, 6, 7),
                b.view().slice(0, 9, 7).slice(1, 8, 4));
  for (std::size_t i = 0; i < 10; ++i) {
    for (std::size_t j = 0; j < 12; ++j) {
      double expected = 0;
      if (i >= 2 && i < 7 && j >= 3 && j < 7) {
        for (std::size_t l = 0; l < 7; ++l) expected += a[(i - 1) * 20 + 6 + l] * b[(9 + l) * 12 + j + 5];
      }
      EXPECT_NEAR(c[i * 12 + j], expected, 1e-13);
    }
  }
}

TEST(Gemm, HasTheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Array a = Array::normal(dtype, {517, 470}, 1);
    const Array b = Array::normal(dtype, {470, 391}, 2);
    Array one(dtype, {517, 391});
    Bench alone;
    kernels::gemm(alone.on(), one.view(), a.view(), b.view());
    for (const std::size_t threads : {2U, 3U, 5U}) {
      Array many(dtype, {517, 391});
      Bench bench(threads, std::size_t{64} << 20);
      kernels::gemm(bench.on(), many.view(), a.view(), b.view());
      EXPECT_TRUE(one == many) << name(dtype) << " with " << threads << " threads";
    }
  }
}

TEST(Gemm, TicksBetweenStretches) {
  const Array a = Array::normal(DType::f32, {600, 1000}, 1);
  const Array b = Array::normal(DType::f32, {1000, 600}, 2);
  Array c(DType::f32, {600, 600});
  int ticks = 0;
  const auto count = [&] { ++ticks; };
  Bench bench(1, kernels::gemm_workspace(c.view(), a.view(), b.view(), 1));
  kernels::Compute on = bench.on();
  on.tick = count;
  kernels::gemm(on, c.view(), a.view(), b.view());
  // 3.6e8 products in tiles of at most 7e7.
  EXPECT_GE(ticks, 5);
}

TEST(Gemm, RefusesViewsThatDontFit) {
  Array a(DType::f32, {4, 5});
  Array b(DType::f32, {6, 3});
  Array c(DType::f32, {4, 3});
  Bench bench;
  EXPECT_THROW(kernels::gemm(bench.on(), c.view(), a.view(), b.view()), std::invalid_argument);
  Array wide(DType::f64, {5, 3});
  EXPECT_THROW(kernels::gemm(bench.on(), c.view(), a.view(), wide.view()), std::invalid_argument);
  Array fitting(DType::f32, {5, 3});
  Array more(DType::f32, {9, 5});
  Array output(DType::f32, {9, 3});
  EXPECT_THROW(kernels::gemm({}, output.view(), more.view(), fitting.view()), std::invalid_argument) << "no workspace";
}

}  // namespace
}  // namespace tsprun::detail::test::gemm_kernel_test
