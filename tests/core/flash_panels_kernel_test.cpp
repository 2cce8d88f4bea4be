// The products and the packing of flash attention's panels against plain loops in f64.
#include "core/kernels/flash_panels.h"

#include "tests/core/kernel_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test::flash_panels_kernel_test {
namespace {

using kernels::flash::PanelProduct;
using kernels::flash::PanelWidths;

class Dice {
 public:
  explicit Dice(unsigned seed) : generator_(seed) {}
  std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(generator_); }
  template <class T>
  std::vector<T> numbers(std::size_t count) {
    std::normal_distribution<T> normal;
    std::vector<T> result(count);
    for (T& value : result) value = normal(generator_);
    return result;
  }

 private:
  std::mt19937 generator_;
};

/// One random product: shapes, strides, and whether A is transposed, whole or in panels.
template <class T>
void check_product(Dice& dice) {
  PanelProduct<T> product;
  product.rows = 1 + dice.below(60);
  product.columns = 1 + dice.below(PanelWidths<T>().tile);
  product.depth = dice.below(90);
  product.add = dice.below(2) == 1;
  product.a_transposed = dice.below(2) == 1;
  const std::size_t columns = product.columns;
  product.b_step = PanelWidths<T>().tile + dice.below(9);
  product.c_step = columns + dice.below(9);
  std::size_t a_count;
  if (product.a_transposed) {
    product.a_step = product.rows + dice.below(9);
    a_count = product.depth * product.a_step;
  } else if (dice.below(2) == 1) {
    product.a_columns = 1 + dice.below(40);
    product.a_step = product.a_columns + dice.below(3);
    product.a_panel = product.rows * product.a_step + dice.below(9);
    a_count = (product.depth / product.a_columns + 1) * product.a_panel;
  } else {
    product.a_step = product.depth + dice.below(9);
    a_count = product.rows * product.a_step;
  }
  const std::vector<T> a = dice.numbers<T>(a_count + 1);
  const std::vector<T> b = dice.numbers<T>((product.depth + 1) * product.b_step);
  const std::vector<T> before = dice.numbers<T>(product.rows * product.c_step);
  std::vector<T> c = before;
  product.a = a.data();
  product.b = b.data();
  product.c = c.data();
  kernels::flash::multiply(product);

  const auto a_at = [&](std::size_t i, std::size_t k) {
    if (product.a_transposed) return static_cast<double>(a[k * product.a_step + i]);
    if (product.a_columns == 0) return static_cast<double>(a[i * product.a_step + k]);
    return static_cast<double>(a[k / product.a_columns * product.a_panel + i * product.a_step + k % product.a_columns]);
  };
  const std::string where = std::to_string(product.rows) + " x " + std::to_string(columns) + " x " +
                            std::to_string(product.depth) + (product.a_transposed ? ", transposed" : "") + ", panels of " +
                            std::to_string(product.a_columns) + (product.add ? ", added" : "");
  for (std::size_t i = 0; i < product.rows; ++i) {
    for (std::size_t j = 0; j < product.c_step; ++j) {
      const std::size_t at = i * product.c_step + j;
      if (j >= columns) {
        ASSERT_EQ(c[at], before[at]) << "beyond the panel, " << where;
        continue;
      }
      double sum = product.add ? static_cast<double>(before[at]) : 0;
      double sizes = std::abs(sum);
      for (std::size_t k = 0; k < product.depth; ++k) {
        const double term = a_at(i, k) * static_cast<double>(b[k * product.b_step + j]);
        sum += term;
        sizes += std::abs(term);
      }
      const double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
      ASSERT_LE(std::abs(static_cast<double>(c[at]) - sum), epsilon * static_cast<double>(product.depth + 2) * sizes)
          << i << ", " << j << " of " << where;
    }
  }
}

TEST(FlashPanels, ProductsEqualPlainLoopsForOddShapesAndStrides) {
  Dice dice(1);
  for (int round = 0; round < 300; ++round) {
    check_product<float>(dice);
    check_product<double>(dice);
    if (HasFatalFailure()) return;
  }
}

TEST(FlashPanels, ProductsDontDependOnTheirNeighbours) {
  // A row alone has the bits that it has among others, whichever register tile it falls into.
  Dice dice(2);
  const std::size_t rows = 53;
  const std::size_t depth = 70;
  const std::size_t width = PanelWidths<float>().tile;
  const std::vector<float> a = dice.numbers<float>(rows * depth);
  const std::vector<float> b = dice.numbers<float>(depth * width);
  std::vector<float> together(rows * width);
  std::vector<float> alone(rows * width);
  PanelProduct<float> product{.rows = rows, .columns = width, .depth = depth, .a = a.data(), .a_step = depth, .b = b.data()};
  product.b_step = width;
  product.c = together.data();
  product.c_step = width;
  kernels::flash::multiply(product);
  product.rows = 1;
  for (std::size_t i = 0; i < rows; ++i) {
    product.a = a.data() + i * depth;
    product.c = alone.data() + i * width;
    kernels::flash::multiply(product);
  }
  EXPECT_TRUE(together == alone);
}

template <class T>
void check_packing(DType dtype, std::size_t rows, std::size_t columns, std::size_t width) {
  const Array wide = Array::normal(dtype, {rows, columns + 3}, 3);
  const ConstTensor view = wide.view().slice(1, 2, columns);
  const auto expected = [&](std::size_t r, std::size_t c) {
    return r < rows && c < columns ? wide[r * (columns + 3) + 2 + c] : 0.0;
  };
  const auto padded = [&](std::size_t count) { return kernels::round_up(count, width); };
  const T marker = 77;
  std::vector<T> packed(rows * padded(columns) + 1, marker);
  kernels::flash::pack_panels(packed.data(), width, view);
  std::vector<T> turned(columns * padded(rows) + 1, marker);
  kernels::flash::pack_transposed(turned.data(), width, view);
  for (std::size_t r = 0; r < padded(rows); ++r) {
    for (std::size_t c = 0; c < padded(columns); ++c) {
      if (r < rows) {
        ASSERT_EQ(static_cast<double>(packed[c / width * rows * width + r * width + c % width]), expected(r, c))
            << r << ", " << c;
      }
      if (c < columns) {
        ASSERT_EQ(static_cast<double>(turned[r / width * columns * width + c * width + r % width]), expected(r, c))
            << r << ", " << c;
      }
    }
  }
  EXPECT_EQ(packed.back(), marker);
  EXPECT_EQ(turned.back(), marker);
}

TEST(FlashPanels, PackingMovesEveryElementAndFillsWithZeros) {
  const PanelWidths<float> f32;
  const PanelWidths<double> f64;
  for (const std::size_t rows : {1U, 5U, 24U, 61U}) {
    for (const std::size_t columns : {1U, 8U, 20U, 64U, 80U}) {
      for (const std::size_t vectors : {1U, 2U, 3U}) {
        check_packing<float>(DType::f32, rows, columns, vectors * f32.lanes);
        check_packing<float>(DType::bf16, rows, columns, vectors * f32.lanes);
        check_packing<double>(DType::f64, rows, columns, vectors * f64.lanes);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::flash_panels_kernel_test
