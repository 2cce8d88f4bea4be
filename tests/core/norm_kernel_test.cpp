// Norms against their formulas in f64, backwards against finite differences.

#include "core/kernels/norm.h"
#include "tests/core/kernel_support.h"

namespace tsprun::detail::test::norm_kernel_test {
namespace {

constexpr double kEpsilon = 1e-5;

enum class Kind { rms, layer };

void forward(Kind kind, const kernels::Compute& on, const Tensor& y, const Array& x, const Array& gain, const Array& bias) {
  if (kind == Kind::rms) {
    kernels::rms_norm(on, y, x.view(), gain.view(), kEpsilon);
  } else {
    kernels::layer_norm(on, y, x.view(), gain.view(), bias.view(), kEpsilon);
  }
}

std::vector<double> naive(Kind kind, const Array& x, const Array& gain, const Array& bias) {
  const std::size_t h = gain.count();
  std::vector<double> y(x.count());
  for (std::size_t row = 0; row < x.count() / h; ++row) {
    double mean = 0;
    for (std::size_t i = 0; i < h; ++i) mean += x[row * h + i] / static_cast<double>(h);
    if (kind == Kind::rms) mean = 0;
    double variance = 0;
    for (std::size_t i = 0; i < h; ++i) variance += std::pow(x[row * h + i] - mean, 2) / static_cast<double>(h);
    for (std::size_t i = 0; i < h; ++i) {
      y[row * h + i] = (x[row * h + i] - mean) / std::sqrt(variance + kEpsilon) * gain[i] + (kind == Kind::layer ? bias[i] : 0);
    }
  }
  return y;
}

struct Gradients {
  Array dx, dgain, dbias;
};

Gradients backward(Kind kind, Bench& bench, const Array& dy, const Array& x, const Array& gain) {
  Gradients result{Array(dy.dtype(), {x.count() / gain.count(), gain.count()}), Array(sums(x.dtype()), {gain.count()}),
                   Array(sums(x.dtype()), {gain.count()})};
  if (kind == Kind::rms) {
    kernels::rms_norm_backward(bench.on(), result.dx.view(), result.dgain.view(), dy.view(), x.view(), gain.view(), kEpsilon);
  } else {
    kernels::layer_norm_backward(bench.on(), result.dx.view(), result.dgain.view(), result.dbias.view(), dy.view(), x.view(),
                                 gain.view(), kEpsilon);
  }
  return result;
}

TEST(Norm, EqualsTheFormula) {
  for (const Kind kind : {Kind::rms, Kind::layer}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const std::size_t h : {1U, 2U, 15U, 64U, 333U}) {
        Array x = Array::normal(dtype, {5, h}, 1);
        for (std::size_t i = 0; i < h; ++i) x.set(i, x[i] + 3);  // a mean far from zero
        const Array gain = Array::normal(dtype, {h}, 2);
        const Array bias = Array::normal(dtype, {h}, 3);
        Array y(dtype, {5, h});
        forward(kind, {}, y.view(), x, gain, bias);
        EXPECT_LE(distance(y, naive(kind, x, gain, bias)), tolerance(dtype)) << name(dtype) << " h " << h;
      }
    }
  }
}

TEST(Norm, BackwardEqualsFiniteDifferences) {
  for (const Kind kind : {Kind::rms, Kind::layer}) {
    for (const std::size_t h : {2U, 13U, 40U}) {
      Array x = Array::normal(DType::f64, {4, h}, 1);
      Array gain = Array::normal(DType::f64, {h}, 2);
      Array bias = Array::normal(DType::f64, {h}, 3);
      const Array dy = Array::normal(DType::f64, {4, h}, 4);
      Array y(DType::f64, {4, h});
      const auto loss = [&] {
        forward(kind, {}, y.view(), x, gain, bias);
        return weighted(y, dy);
      };
      Bench bench;
      const Gradients gradients = backward(kind, bench, dy, x, gain);
      EXPECT_LE(distance(gradients.dx, finite_differences(x, loss, 1e-6)), h == 2 ? 1e-4 : 1e-7) << "h " << h;
      EXPECT_LE(distance(gradients.dgain, finite_differences(gain, loss)), 1e-8);
      if (kind == Kind::layer) {
        EXPECT_LE(distance(gradients.dbias, finite_differences(bias, loss)), 1e-8);
      }
    }
  }
}

TEST(Norm, BackwardInNarrowTypesStaysNearF64) {
  for (const Kind kind : {Kind::rms, Kind::layer}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Array x = Array::normal(dtype, {2100, 70}, 1);
      const Array gain = Array::normal(dtype, {70}, 2);
      const Array dy = Array::normal(dtype, {2100, 70}, 3);
      const auto widen = [](const Array& narrow, std::vector<std::size_t> sizes) {
        Array wide(DType::f64, std::move(sizes));
        for (std::size_t i = 0; i < wide.count(); ++i) wide.set(i, narrow[i]);
        return wide;
      };
      Bench bench;
      const Gradients exact = backward(kind, bench, widen(dy, {2100, 70}), widen(x, {2100, 70}), widen(gain, {70}));
      const Gradients gradients = backward(kind, bench, dy, x, gain);
      EXPECT_LE(distance(gradients.dx, exact.dx.values()), tolerance(dtype));
      EXPECT_LE(distance(gradients.dgain, exact.dgain.values()), 1e-5);
      if (kind == Kind::layer) {
        EXPECT_LE(distance(gradients.dbias, exact.dbias.values()), 1e-5);
      }
    }
  }
}

TEST(Norm, BackwardAddsWhereAskedTo) {
  const Array x = Array::normal(DType::f32, {6, 20}, 1);
  const Array gain = Array::normal(DType::f32, {20}, 2);
  const Array dy = Array::normal(DType::f32, {6, 20}, 3);
  Bench bench;
  const Gradients plain = backward(Kind::rms, bench, dy, x, gain);
  Array dx = Array::normal(DType::f32, {6, 20}, 4);
  Array dgain = Array::normal(DType::f32, {20}, 5);
  std::vector<double> expected_dx = dx.values();
  std::vector<double> expected_dgain = dgain.values();
  for (std::size_t i = 0; i < expected_dx.size(); ++i) expected_dx[i] += plain.dx[i];
  for (std::size_t i = 0; i < expected_dgain.size(); ++i) expected_dgain[i] += plain.dgain[i];
  kernels::rms_norm_backward(bench.on(), dx.view(), dgain.view(), dy.view(), x.view(), gain.view(), kEpsilon,
                             kernels::Write::add);
  EXPECT_LE(distance(dx, expected_dx), 1e-6);
  EXPECT_LE(distance(dgain, expected_dgain), 1e-6);
}

/// Halves of rows, unlike in width and with a gap between rows, which exchange sums.
TEST(Norm, OfPartsOfRowsEqualsThatOfWholeRows) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const kernels::NormForm form : {kernels::NormForm{}, kernels::NormForm{.gain_from_one = true}}) {
      constexpr std::size_t kRows = 1100;
      constexpr std::size_t kWidth = 41;
      const Array x = Array::normal(dtype, {kRows, kWidth}, 1);
      const Array gain = Array::normal(dtype, {kWidth}, 2);
      const Array dy = Array::normal(sums(dtype), {kRows, kWidth}, 3);
      Bench bench;
      Array y(dtype, {kRows, kWidth}), part_y(dtype, {kRows, kWidth});
      Array dx(sums(dtype), {kRows, kWidth}), part_dx(sums(dtype), {kRows, kWidth});
      Array dgain(sums(dtype), {kWidth}), part_dgain(sums(dtype), {kWidth});
      kernels::rms_norm(bench.on(), y.view(), x.view(), gain.view(), kEpsilon, form);
      kernels::rms_norm_backward(bench.on(), dx.view(), dgain.view(), dy.view(), x.view(), gain.view(), kEpsilon,
                                 kernels::Write::replace, form);
      const std::array<std::array<std::size_t, 2>, 2> parts = {{{0, 24}, {24, 17}}};
      Array squares(sums(dtype), {kRows}), products(sums(dtype), {kRows});
      for (const auto& [first, count] : parts) {
        Array of_part(sums(dtype), {kRows});
        kernels::row_sums(bench.on(), of_part.view(), x.view().slice(1, first, count));
        for (std::size_t r = 0; r < kRows; ++r) squares.set(r, squares[r] + of_part[r]);
        kernels::row_sums(bench.on(), of_part.view(), x.view().slice(1, first, count), dy.view().slice(1, first, count),
                          gain.view().slice(0, first, count), form);
        for (std::size_t r = 0; r < kRows; ++r) products.set(r, products[r] + of_part[r]);
      }
      for (const auto& [first, count] : parts) {
        const kernels::WholeRows whole{kWidth, squares.view(), products.view()};
        const auto part = [&, first = first, count = count](auto& of) {
          return of.view().slice(of.view().dims() - 1, first, count);
        };
        kernels::rms_norm(bench.on(), part(part_y), part(x), part(gain), kEpsilon, form, whole);
        kernels::rms_norm_backward(bench.on(), part(part_dx), part(part_dgain), part(dy), part(x), part(gain), kEpsilon,
                                   kernels::Write::replace, form, whole);
      }
      EXPECT_LE(distance(part_y, y.values()), tolerance(dtype));
      EXPECT_LE(distance(part_dx, dx.values()), tolerance(sums(dtype)));
      EXPECT_LE(distance(part_dgain, dgain.values()), tolerance(sums(dtype)));
    }
  }
}

TEST(Norm, OfNoElementsOfARowHasSumsOfZero) {
  const Array x = Array::normal(DType::f32, {3, 8}, 1);
  Array squares = Array::normal(DType::f32, {3}, 2);
  kernels::row_sums({}, squares.view(), x.view().slice(1, 0, 0));
  EXPECT_EQ(squares.values(), std::vector<double>(3, 0));
}

TEST(Norm, BackwardMayOverwriteItsGradient) {
  const Array x = Array::normal(DType::f32, {1500, 20}, 1);
  const Array gain = Array::normal(DType::f32, {20}, 2);
  Array dy = Array::normal(DType::f32, {1500, 20}, 3);
  Bench bench(2);
  const Gradients expected = backward(Kind::rms, bench, dy, x, gain);
  Array dgain(DType::f32, {20});
  kernels::rms_norm_backward(bench.on(), dy.view(), dgain.view(), dy.view(), x.view(), gain.view(), kEpsilon);
  EXPECT_TRUE(dy == expected.dx);
  EXPECT_TRUE(dgain == expected.dgain);
}

/// A norm without a gain is that with a gain of ones, to the bit.
TEST(Norm, NeedsNoGain) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Array x = Array::normal(dtype, {7, 21}, 1);
    const Array dy = Array::normal(dtype, {7, 21}, 2);
    Array ones(dtype, {21});
    for (std::size_t i = 0; i < ones.count(); ++i) ones.set(i, 1);
    Array y(dtype, {7, 21});
    Array expected(dtype, {7, 21});
    kernels::rms_norm({}, y.view(), x.view(), {}, kEpsilon);
    kernels::rms_norm({}, expected.view(), x.view(), ones.view(), kEpsilon);
    EXPECT_TRUE(y == expected) << name(dtype);
    Bench bench;
    Array dx(dtype, {7, 21});
    kernels::rms_norm_backward(bench.on(), dx.view(), {}, dy.view(), x.view(), {}, kEpsilon);
    EXPECT_TRUE(dx == backward(Kind::rms, bench, dy, x, ones).dx) << name(dtype);
  }
}

TEST(Norm, HasTheSameBitsForAnyNumberOfThreads) {
  const Array x = Array::normal(DType::f32, {1500, 600}, 1);
  const Array gain = Array::normal(DType::f32, {600}, 2);
  const Array dy = Array::normal(DType::f32, {1500, 600}, 3);
  Bench alone(1);
  Bench three(3);
  const Gradients one = backward(Kind::layer, alone, dy, x, gain);
  const Gradients many = backward(Kind::layer, three, dy, x, gain);
  EXPECT_TRUE(one.dx == many.dx && one.dgain == many.dgain && one.dbias == many.dbias);
}

/// A gain as 1 + w, a multiplier of the whole result, and LayerNorm without a bias.
TEST(Norm, FormsOfTheGainEqualTheirFormulasAndFiniteDifferences) {
  for (const bool centered : {false, true}) {
    for (const bool has_bias : {false, true}) {
      if (has_bias && !centered) continue;
      for (const kernels::NormForm& form :
           {kernels::NormForm{}, kernels::NormForm{.gain_from_one = true},
            kernels::NormForm{.gain_from_one = true, .multiplier = 0.3}, kernels::NormForm{.multiplier = -1.5}}) {
        Array x = Array::normal(DType::f64, {4, 21}, 1);
        Array gain = Array::normal(DType::f64, {21}, 2);
        Array bias = Array::normal(DType::f64, {21}, 3);
        const Array dy = Array::normal(DType::f64, {4, 21}, 4);
        Array y(DType::f64, {4, 21});
        const auto compute = [&](const Tensor& to, const Array& of_x, const Array& of_gain, const Array& of_bias) {
          const ConstTensor b = has_bias ? of_bias.view() : ConstTensor();
          if (centered) kernels::layer_norm({}, to, of_x.view(), of_gain.view(), b, kEpsilon, form);
          else kernels::rms_norm({}, to, of_x.view(), of_gain.view(), kEpsilon, form);
        };
        compute(y.view(), x, gain, bias);
        Array g(DType::f64, {21});
        Array b(DType::f64, {21});
        for (std::size_t i = 0; i < 21; ++i) {
          g.set(i, form.multiplier * (gain[i] + (form.gain_from_one ? 1 : 0)));
          b.set(i, has_bias ? form.multiplier * bias[i] : 0);
        }
        EXPECT_LE(distance(y, naive(centered ? Kind::layer : Kind::rms, x, g, b)), 1e-13);

        Bench bench;
        Array dx(DType::f64, {4, 21});
        Array dgain(DType::f64, {21});
        Array dbias(DType::f64, {21});
        if (centered) {
          kernels::layer_norm_backward(bench.on(), dx.view(), dgain.view(), has_bias ? dbias.view() : Tensor(), dy.view(),
                                       x.view(), gain.view(), kEpsilon, kernels::Write::replace, form);
        } else {
          kernels::rms_norm_backward(bench.on(), dx.view(), dgain.view(), dy.view(), x.view(), gain.view(), kEpsilon,
                                     kernels::Write::replace, form);
        }
        const auto loss = [&] {
          compute(y.view(), x, gain, bias);
          return weighted(y, dy);
        };
        EXPECT_LE(distance(dx, finite_differences(x, loss, 1e-6)), 1e-7);
        EXPECT_LE(distance(dgain, finite_differences(gain, loss)), 1e-8);
        if (has_bias) {
          EXPECT_LE(distance(dbias, finite_differences(bias, loss)), 1e-8);
        }
        for (const DType dtype : {DType::f32, DType::bf16}) {  // one rounding, however large the gain
          const auto narrow = [&](const Array& wide, std::vector<std::size_t> sizes) {
            Array of(dtype, std::move(sizes));
            for (std::size_t i = 0; i < of.count(); ++i) of.set(i, wide[i]);
            return of;
          };
          Array to(dtype, {4, 21});
          const Array narrow_x = narrow(x, {4, 21});
          const Array narrow_gain = narrow(gain, {21});
          compute(to.view(), narrow_x, narrow_gain, narrow(bias, {21}));
          for (std::size_t i = 0; i < 21; ++i) {
            g.set(i, form.multiplier * (narrow_gain[i] + (form.gain_from_one ? 1 : 0)));
            b.set(i, has_bias ? form.multiplier * narrow(bias, {21})[i] : 0);
          }
          EXPECT_LE(distance(to, naive(centered ? Kind::layer : Kind::rms, narrow_x, g, b)), tolerance(dtype)) << name(dtype);
        }
      }
    }
  }
}

// The squares of one row are too large for f32: no number is right, and zeros would be wrong in silence.
TEST(Norm, OfARowThatOverflowsIsNan) {
  for (const Kind kind : {Kind::rms, Kind::layer}) {
    Array x = Array::normal(DType::f32, {2, 40}, 1);
    x.set(45, 3e19);
    const Array gain = Array::normal(DType::f32, {40}, 2);
    Array y(DType::f32, {2, 40});
    forward(kind, {}, y.view(), x, gain, gain);
    for (std::size_t i = 0; i < 80; ++i) EXPECT_EQ(std::isnan(y[i]), i >= 40) << i;
  }
}

TEST(Norm, OfNoRowsAddsNothing) {
  const Array x(DType::f32, {0, 20});
  const Array gain = Array::normal(DType::f32, {20}, 2);
  Bench bench;
  EXPECT_TRUE(backward(Kind::rms, bench, x, x, gain).dgain == Array(DType::f32, {20}));
}

}  // namespace
}  // namespace tsprun::detail::test::norm_kernel_test
