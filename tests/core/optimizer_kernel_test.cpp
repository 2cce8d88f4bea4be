// AdamW against PyTorch's update written out in f64, and the pieces of the gradient norm.

#include "core/kernels/optimizer.h"
#include "tests/core/kernel_support.h"

namespace tsprun::detail::test::optimizer_kernel_test {
namespace {

struct Reference {
  std::vector<double> p, m, v;

  void update(const kernels::AdamW& o, const Array& gradient) {
    const auto step = static_cast<double>(o.step);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = o.gradient_scale * gradient[i];
      p[i] *= 1 - o.learning_rate * o.weight_decay;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      const double corrected_m = m[i] / (1 - std::pow(o.beta1, step));
      const double corrected_v = v[i] / (1 - std::pow(o.beta2, step));
      p[i] -= o.learning_rate * corrected_m / (std::sqrt(corrected_v) + o.epsilon);
    }
  }
};

TEST(AdamW, FollowsTheFormulaOverSeveralSteps) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const std::size_t count = 40001;
    Array parameters = Array::normal(dtype, {count}, 1);
    Array master(sums(dtype), {count});
    for (std::size_t i = 0; i < count; ++i) master.set(i, parameters[i]);
    Array m(sums(dtype), {count});
    Array v(m);
    Reference reference{parameters.values(), m.values(), v.values()};
    kernels::AdamW options{.learning_rate = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.5};
    Bench bench(2);
    for (options.step = 1; options.step <= 5; ++options.step) {
      const Array gradient = Array::normal(sums(dtype), {count}, static_cast<unsigned>(options.step) + 10);
      kernels::adamw(bench.on(), options, parameters.view(), dtype == DType::bf16 ? master.view() : Tensor(), m.view(), v.view(),
                     gradient.view());
      reference.update(options, gradient);
    }
    EXPECT_LE(distance(m, reference.m), dtype == DType::f64 ? 1e-14 : 1e-6);
    EXPECT_LE(distance(v, reference.v), dtype == DType::f64 ? 1e-14 : 1e-6);
    EXPECT_LE(distance(parameters, reference.p), tolerance(dtype));
    if (dtype == DType::bf16) {
      EXPECT_LE(distance(master, reference.p), 2e-6);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(parameters[i], static_cast<double>(static_cast<float>(bf16(static_cast<float>(master[i])))));
      }
    }
  }
}

TEST(AdamW, KeepsWhatBf16WouldLose) {
  // Steps far below bf16's resolution add up in the master copy.
  Array parameters(DType::bf16, {1});
  parameters.set(0, 1);
  Array master(DType::f32, {1});
  master.set(0, 1);
  Array m(DType::f32, {1});
  Array v(DType::f32, {1});
  Array gradient(DType::f32, {1});
  gradient.set(0, 1);
  for (std::uint64_t step = 1; step <= 100; ++step) {
    kernels::adamw({}, {.learning_rate = 1e-4, .step = step}, parameters.view(), master.view(), m.view(), v.view(),
                   gradient.view());
  }
  EXPECT_NEAR(master[0], 0.99, 1e-4);
  EXPECT_NEAR(parameters[0], 0.99, 4e-3);
}

TEST(AdamW, RefusesBf16WithoutAMasterCopy) {
  Array parameters(DType::bf16, {4});
  Array state(DType::f32, {4});
  EXPECT_THROW(kernels::adamw({}, {}, parameters.view(), Tensor(), state.view(), state.view(), state.view()),
               std::invalid_argument);
}

TEST(GradientNorm, SumsSquaresInF64) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t count : {0U, 1U, 5U, 100003U}) {
      const Array x = Array::normal(dtype, {count}, 1);
      double expected = 0;
      for (std::size_t i = 0; i < count; ++i) expected += x[i] * x[i];
      Bench one(1);
      Bench three(3);
      const double sum = kernels::sum_of_squares(one.on(), x.view());
      EXPECT_NEAR(sum, expected, 1e-13 * expected);
      EXPECT_EQ(sum, kernels::sum_of_squares(three.on(), x.view()));
    }
  }
  EXPECT_EQ(kernels::clip_factor(4, 0), 1);
  EXPECT_EQ(kernels::clip_factor(0.5, 1), 1);
  EXPECT_NEAR(kernels::clip_factor(4, 1), 0.25, 1e-6);
}

TEST(GradientNorm, HasTheSameBitsIfBlocksAreSummedPieceByPiece) {
  constexpr std::size_t kCount = 3 * kernels::kSquaresBlock + 77;
  const std::vector<std::size_t> cuts = {
      0, 1, 6, 7, 4096, kernels::kSquaresBlock - 3, kernels::kSquaresBlock + 5, 2 * kernels::kSquaresBlock, kCount - 50, kCount};
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Array x = Array::normal(dtype, {kCount}, 1);
    Bench bench(2);
    std::vector<kernels::SquareLanes> blocks(4);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::size_t first = cuts[i] / kernels::kSquaresBlock;
      const std::size_t end = (cuts[i + 1] + kernels::kSquaresBlock - 1) / kernels::kSquaresBlock;
      kernels::add_squares(bench.on(), std::span(blocks).subspan(first, end - first),
                           x.view().slice(0, cuts[i], cuts[i + 1] - cuts[i]), cuts[i]);
    }
    double sum = 0;
    for (const kernels::SquareLanes& block : blocks) sum += kernels::sum_of(block);
    EXPECT_EQ(sum, kernels::sum_of_squares(bench.on(), x.view()));
  }
  EXPECT_THROW(kernels::add_squares({}, {}, Array(DType::f32, {4}).view(), 0), std::invalid_argument);
}

}  // namespace
}  // namespace tsprun::detail::test::optimizer_kernel_test
