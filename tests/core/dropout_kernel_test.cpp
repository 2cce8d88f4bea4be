// Dropout: the published SplitMix64, the definition element by element, how often elements fall, and that rows may come in any
// order and number.

#include "core/kernels/dropout.h"
#include "tests/core/kernel_support.h"

namespace tsprun::detail::test::dropout_kernel_test {
namespace {

/// SplitMix64 as its authors publish it, one number after another.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : x_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (x_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t x_;
};

TEST(Dropout, DrawsTheNumbersOfSplitMix64) {
  EXPECT_EQ(kernels::split_mix(0, 0), 0xE220A8397B1DCDAFU);  // the sequence's first for seed 0
  Generator generator(1234567);
  for (std::uint64_t n = 0; n < 100; ++n) EXPECT_EQ(kernels::split_mix(1234567, n), generator.next());
}

TEST(Dropout, KeepsScalesAndDropsAsDefined) {
  const std::vector<std::uint64_t> rows = {5, 0, 123456789012, 5};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Array x = Array::normal(dtype, {4, 333}, 1);
    Array y(dtype, {4, 333});
    Bench bench(2);
    kernels::dropout(bench.on(), y.view(), x.view(), rows, {.probability = 0.3, .key = 99});
    std::vector<double> expected;
    for (const std::uint64_t row : rows) {
      Generator states(99);
      std::uint64_t state = kernels::split_mix(99, row);
      if (row < 10) {
        for (std::uint64_t i = 0; i <= row; ++i) state = states.next();
      }
      Generator elements(state);
      for (std::size_t i = 0; i < 333; ++i) {
        const bool stays = static_cast<double>(elements.next() >> 11) * 0x1p-53 >= 0.3;
        expected.push_back(stays ? x[expected.size()] / 0.7 : 0);
      }
    }
    EXPECT_LE(distance(y, expected), tolerance(dtype));
    EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 333, expected.begin() + 3 * 333,
                           [](double a, double b) { return (a == 0) == (b == 0); }));
  }
}

TEST(Dropout, DropsAsOftenAsAskedAndDifferentlyForAnotherKey) {
  Array ones(DType::f32, {100, 1000});
  for (std::size_t i = 0; i < ones.count(); ++i) ones.set(i, 1);
  std::vector<std::uint64_t> rows(100);
  for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = r;
  Array y(DType::f32, {100, 1000});
  for (const double probability : {0.0, 0.1, 0.5, 0.9}) {
    std::vector<std::vector<double>> drawn;
    for (const std::uint64_t key : {1U, 2U}) {
      kernels::dropout({}, y.view(), ones.view(), rows, {.probability = probability, .key = key});
      std::size_t dropped = 0;
      for (std::size_t i = 0; i < y.count(); ++i) dropped += y[i] == 0;
      // Five standard deviations of 100 000 draws.
      EXPECT_NEAR(static_cast<double>(dropped) / 1e5, probability, 5 * std::sqrt(probability * (1 - probability) / 1e5));
      drawn.push_back(y.values());
    }
    EXPECT_EQ(drawn[0] == drawn[1], probability == 0);
  }
}

TEST(Dropout, RefusesRowsThatDontFitAndProbabilitiesThatArent) {
  Array x(DType::f32, {2, 3});
  const std::vector<std::uint64_t> rows = {0, 1};
  EXPECT_THROW(kernels::dropout({}, x.view(), x.view(), std::span(rows).first(1), {.probability = 0.1, .key = 0}),
               std::invalid_argument);
  EXPECT_THROW(kernels::dropout({}, x.view(), x.view(), rows, {.probability = 1, .key = 0}), std::invalid_argument);
  EXPECT_THROW(kernels::dropout({}, x.view(), x.view(), rows, {.probability = std::nan(""), .key = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace tsprun::detail::test::dropout_kernel_test
