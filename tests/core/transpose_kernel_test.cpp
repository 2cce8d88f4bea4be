// Transposing against indices.

#include "core/kernels/transpose.h"
#include "tests/core/kernel_support.h"

namespace tsprun::detail::test::transpose_kernel_test {
namespace {

TEST(Transpose, MovesEachElementOfStridedViewsAndNoOther) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t n : {1U, 2U, 7U, 32U, 77U}) {
      for (const std::size_t m : {1U, 8U, 19U, 128U}) {
        const Array from = Array::normal(dtype, {n, m + 3}, 1);
        Array to = Array::normal(dtype, {m, n + 5}, 2);
        std::vector<double> expected = to.values();
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t j = 0; j < m; ++j) expected[j * (n + 5) + 2 + i] = from[i * (m + 3) + 1 + j];
        }
        kernels::transpose(to.view().slice(1, 2, n), from.view().slice(1, 1, m));
        EXPECT_EQ(to.values(), expected) << n << " x " << m;
      }
    }
  }
}

TEST(Transpose, RefusesShapesAndTypesThatDontFit) {
  Array to(DType::f32, {3, 4});
  const Array same(DType::f32, {3, 4});
  const Array other(DType::bf16, {4, 3});
  EXPECT_THROW(kernels::transpose(to.view(), same.view()), std::invalid_argument);
  EXPECT_THROW(kernels::transpose(to.view(), other.view()), std::invalid_argument);
  EXPECT_THROW(kernels::transpose(to.view(), ConstTensor(to.view()).slice(1, 0, 3).transposed(0, 1)), std::invalid_argument);
}

}  // namespace
}  // namespace tsprun::detail::test::transpose_kernel_test
