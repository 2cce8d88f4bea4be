// Sharded cross-entropy against the formula over the whole vocabulary, in f64.

#include "core/kernels/cross_entropy.h"
#include "tests/core/kernel_support.h"

#include <limits>

namespace tsprun::detail::test::cross_entropy_kernel_test {
namespace {

constexpr std::size_t kTokens = 9;
constexpr std::size_t kVocabulary = 101;

std::vector<std::int64_t> some_labels() {
  std::vector<std::int64_t> labels;
  for (std::size_t t = 0; t < kTokens; ++t) labels.push_back(static_cast<std::int64_t>(t * 37 % kVocabulary));
  labels[4] = kernels::kNoLabel;
  labels[5] = kVocabulary - 1;
  return labels;
}

double naive_loss(const Array& logits, const std::vector<std::int64_t>& labels) {
  double loss = 0;
  for (std::size_t t = 0; t < kTokens; ++t) {
    if (labels[t] == kernels::kNoLabel) continue;
    double sum = 0;
    for (std::size_t i = 0; i < kVocabulary; ++i) sum += std::exp(logits[t * kVocabulary + i]);
    loss += std::log(sum) - logits[t * kVocabulary + static_cast<std::size_t>(labels[t])];
  }
  return loss;
}

struct State {
  Array maximum, sum, label_logit;

  explicit State(DType dtype) : maximum(sums(dtype), {kTokens}), sum(maximum), label_logit(maximum) {
    kernels::cross_entropy_begin(maximum.view(), sum.view(), label_logit.view());
  }
  void take(Bench& bench, const Array& logits, const std::vector<std::int64_t>& labels, std::size_t first, std::size_t count) {
    kernels::cross_entropy_update(bench.on(), maximum.view(), sum.view(), label_logit.view(),
                                  logits.view().slice(1, first, count), labels, static_cast<std::int64_t>(first));
  }
  void finish() { kernels::cross_entropy_finish(maximum.view(), maximum.view(), sum.view()); }
  double loss(const std::vector<std::int64_t>& labels) const {
    return kernels::cross_entropy_loss(maximum.view(), label_logit.view(), labels);
  }
};

TEST(CrossEntropy, IsTheSameHoweverTheVocabularyIsSharded) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Array logits = Array::normal(dtype, {kTokens, kVocabulary}, 1, 4);
    const std::vector<std::int64_t> labels = some_labels();
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>{0, 101}, {0, 33, 33, 70, 101}, {50, 101, 0, 50}, {0, 1, 100, 101}}) {
      State state(dtype);
      Bench bench(2);
      for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        if (cuts[c] < cuts[c + 1]) state.take(bench, logits, labels, cuts[c], cuts[c + 1] - cuts[c]);
      }
      // The third list visits the shards out of order: from 50 on first, as a rotation does.
      state.finish();
      EXPECT_NEAR(state.loss(labels), naive_loss(logits, labels), dtype == DType::f64 ? 1e-11 : 2e-4) << name(dtype);
    }
  }
}

TEST(CrossEntropy, BackwardEqualsFiniteDifferences) {
  Array logits = Array::normal(DType::f64, {kTokens, kVocabulary}, 1, 2);
  const std::vector<std::int64_t> labels = some_labels();
  State state(DType::f64);
  Bench bench;
  state.take(bench, logits, labels, 0, kVocabulary);
  state.finish();
  Array gradient(DType::f64, {kTokens, kVocabulary});
  for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 40}, {40, 61}}) {
    kernels::cross_entropy_backward(bench.on(), gradient.view().slice(1, first, count), logits.view().slice(1, first, count),
                                    state.maximum.view(), labels, static_cast<std::int64_t>(first), 0.125);
  }
  std::vector<double> expected = finite_differences(logits, [&] { return naive_loss(logits, labels); });
  for (double& value : expected) value /= 8;
  EXPECT_LE(distance(gradient, expected), 1e-7);
}

TEST(CrossEntropy, OfCappedLogitsEqualsTheFormulaAndItsFiniteDifferences) {
  constexpr double kCap = 1.5;
  const std::vector<std::int64_t> labels = some_labels();
  for (const DType dtype : {DType::f64, DType::f32}) {
    Array logits = Array::normal(dtype, {kTokens, kVocabulary}, 1, 2);
    const auto capped_by_formula = [&] {
      Array capped(DType::f64, {kTokens, kVocabulary});
      for (std::size_t i = 0; i < logits.count(); ++i) capped.set(i, kCap * std::tanh(logits[i] / kCap));
      return capped;
    };
    Array capped = logits;
    Bench bench(2);
    kernels::cap_logits(bench.on(), capped.view(), kCap);
    EXPECT_LE(distance(capped, capped_by_formula().values()), dtype == DType::f64 ? 1e-14 : 1e-6);
    State state(dtype);
    state.take(bench, capped, labels, 0, kVocabulary);
    state.finish();
    EXPECT_NEAR(state.loss(labels), naive_loss(capped_by_formula(), labels), dtype == DType::f64 ? 1e-11 : 2e-4);
    for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 40}, {40, 61}}) {
      const Tensor part = capped.view().slice(1, first, count);
      kernels::cross_entropy_backward(bench.on(), part, part, state.maximum.view(), labels, static_cast<std::int64_t>(first),
                                      0.125, kCap);
    }
    Array exact(DType::f64, {kTokens, kVocabulary});
    for (std::size_t i = 0; i < logits.count(); ++i) exact.set(i, logits[i]);
    std::vector<double> expected = finite_differences(exact, [&] {
      Array of = exact;
      for (std::size_t i = 0; i < of.count(); ++i) of.set(i, kCap * std::tanh(exact[i] / kCap));
      return naive_loss(of, labels);
    });
    for (double& value : expected) value /= 8;
    EXPECT_LE(distance(capped, expected), dtype == DType::f64 ? 1e-7 : 1e-5);
  }
}

TEST(CrossEntropy, CappingTellsWhatIsNotFinite) {
  Array logits(DType::f32, {1, 4});
  logits.set(1, std::numeric_limits<double>::infinity());
  logits.set(2, -std::numeric_limits<double>::infinity());
  logits.set(3, std::nan(""));
  kernels::cap_logits({}, logits.view(), 30);
  EXPECT_EQ(logits[0], 0);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(std::isnan(logits[i])) << i;
  EXPECT_THROW(kernels::cap_logits({}, logits.view(), 0), std::invalid_argument);
}

TEST(CrossEntropy, BackwardMayOverwriteTheLogitsAndLeavesUnlabelledTokensAtZero) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Array logits = Array::normal(dtype, {kTokens, kVocabulary}, 1, 2);
    const std::vector<std::int64_t> labels = some_labels();
    State state(dtype);
    Bench bench;
    state.take(bench, logits, labels, 0, kVocabulary);
    state.finish();
    Array apart(dtype, {kTokens, kVocabulary});
    kernels::cross_entropy_backward(bench.on(), apart.view(), logits.view(), state.maximum.view(), labels, 0, 1);
    kernels::cross_entropy_backward(bench.on(), logits.view(), logits.view(), state.maximum.view(), labels, 0, 1);
    EXPECT_TRUE(apart == logits);
    for (std::size_t i = 0; i < kVocabulary; ++i) EXPECT_EQ(apart[4 * kVocabulary + i], 0);
  }
}

TEST(CrossEntropy, MergesLogSumExpsOfShards) {
  const Array logits = Array::normal(DType::f64, {kTokens, kVocabulary}, 1, 2);
  const std::vector<std::int64_t> labels = some_labels();
  Bench bench;
  State whole(DType::f64), low(DType::f64), high(DType::f64), none(DType::f64);
  whole.take(bench, logits, labels, 0, kVocabulary);
  low.take(bench, logits, labels, 0, 10);
  high.take(bench, logits, labels, 10, kVocabulary - 10);
  for (State* state : {&whole, &low, &high, &none}) state->finish();
  EXPECT_EQ(none.maximum[0], -std::numeric_limits<double>::infinity());
  Array lse(DType::f64, {kTokens});
  const ConstTensor parts[] = {low.maximum.view(), none.maximum.view(), high.maximum.view()};
  kernels::merge_log_sum_exp(lse.view(), parts);
  EXPECT_LE(distance(lse, whole.maximum.values()), 1e-15);
}

TEST(CrossEntropy, MergingLetsNansThrough) {
  for (const double other : {-std::numeric_limits<double>::infinity(), 1.5, std::nan("")}) {
    Array broken(DType::f64, {1});
    broken.set(0, std::nan(""));
    Array second(DType::f64, {1});
    second.set(0, other);
    Array lse(DType::f64, {1});
    const ConstTensor parts[] = {broken.view(), second.view()};
    kernels::merge_log_sum_exp(lse.view(), parts);
    EXPECT_TRUE(std::isnan(lse[0])) << "beside " << other;
  }
}

TEST(CrossEntropy, LetsNansThrough) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const std::size_t place : {0U, 50U, 100U}) {
      Array logits = Array::normal(dtype, {kTokens, kVocabulary}, 1);
      logits.set(2 * kVocabulary + place, std::nan(""));
      const std::vector<std::int64_t> labels = some_labels();
      State state(dtype);
      Bench bench;
      state.take(bench, logits, labels, 0, 60);
      state.take(bench, logits, labels, 60, 41);
      state.finish();
      EXPECT_TRUE(std::isnan(state.loss(labels))) << "logit " << place;
    }
  }
}

TEST(CrossEntropy, SurvivesLargeLogits) {
  Array logits = Array::normal(DType::f32, {kTokens, kVocabulary}, 1);
  for (std::size_t i = 0; i < logits.count(); ++i) logits.set(i, logits[i] * 1e4);
  const std::vector<std::int64_t> labels = some_labels();
  State state(DType::f32);
  Bench bench;
  state.take(bench, logits, labels, 0, 50);
  state.take(bench, logits, labels, 50, 51);
  state.finish();
  EXPECT_TRUE(std::isfinite(state.loss(labels)));
}

}  // namespace
}  // namespace tsprun::detail::test::cross_entropy_kernel_test
