// Tests of the search for the first infinite or NaN element.
#include "core/kernels/finite.h"
#include "tests/core/kernel_support.h"

#include <cmath>
#include <limits>
#include <optional>

namespace tsprun::detail::test::finite_kernel_test {
namespace {

TEST(FirstNotFinite, FindsEachElementOfEachType) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const double broken : {std::nan(""), -std::numeric_limits<double>::infinity()}) {
      Array array = Array::normal(dtype, {3, 2, 1030}, 1);
      array.set(7, dtype == DType::f64 ? -1e308 : -3e38);
      array.set(8, 0);
      EXPECT_EQ(kernels::first_not_finite(array.view()), std::nullopt);
      for (const std::size_t at : {6179U, 5000U, 2060U, 1029U, 1024U, 3U, 0U}) {
        array.set(at, broken);
        EXPECT_EQ(kernels::first_not_finite(array.view()), at) << name(dtype);
      }
    }
  }
}

TEST(FirstNotFinite, SeesOnlyTheView) {
  Array array = Array::normal(DType::f32, {4, 5, 6}, 1);
  array.set((2 * 5 + 3) * 6 + 4, std::nan(""));
  const Tensor all = array.view();
  EXPECT_EQ(kernels::first_not_finite(all.slice(2, 0, 4)), std::nullopt);
  EXPECT_EQ(kernels::first_not_finite(all.slice(0, 0, 2)), std::nullopt);
  const Tensor part = all.slice(0, 1, 3).slice(1, 2, 2).slice(2, 3, 3);
  EXPECT_EQ(kernels::first_not_finite(part), std::size_t{(1 * 2 + 1) * 3 + 1});
  EXPECT_EQ(kernels::describe_element(part, (1 * 2 + 1) * 3 + 1), "nan at [1, 1, 1]");
  EXPECT_EQ(kernels::first_not_finite(all.transposed(0, 1)), std::size_t{(3 * 4 + 2) * 6 + 4});
  EXPECT_EQ(kernels::first_not_finite(ConstTensor()), std::nullopt);
  EXPECT_EQ(kernels::first_not_finite(all.slice(1, 2, 0)), std::nullopt);
}

}  // namespace
}  // namespace tsprun::detail::test::finite_kernel_test
