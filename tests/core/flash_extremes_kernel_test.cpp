// Flash attention where numbers leave what is usual: scores far beyond 1, scores that overflow, NaN and infinity in operands.
// The witness is the textbook's formula in f64, or the same call with whole operands.
#include "tests/core/flash_support.h"

namespace tsprun::detail::test::flash_extremes_kernel_test {
namespace {
using namespace tsprun::detail::test::flash;

constexpr std::size_t kHeadDim = 24;  // the scale of scores is no power of two

kernels::Mask causal() { return kernels::Mask::from_positions(0, 0); }

/// k = factor·q, as where W_K = factor·W_Q.
Problem with_scores(double factor, DType dtype, const kernels::Mask& mask = causal()) {
  Problem problem({1, 250, 250, 2, 2, kHeadDim, mask, {}}, dtype);
  for (std::size_t i = 0; i < problem.k.count(); ++i) problem.k.set(i, factor * problem.q[i]);
  return problem;
}

double largest_difference(const Array& actual, const std::vector<double>& expected) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

TEST(FlashExtremes, LargeScoresGiveWhatTheyGiveInF64) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double factor : {1e2, 1e3, 1e9, 1e30}) {
      const Problem problem = with_scores(factor, dtype);
      const Expected expected = naive(problem);
      const Results results = run(problem);
      const std::string where = std::string(name(dtype)) + " factor " + std::to_string(factor);
      const double rounding = dtype == DType::bf16 ? 1e-2 : 1e-3;
      EXPECT_LE(distance(results.o, expected.o), rounding) << where;
      EXPECT_LE(distance(results.lse, expected.lse), 1e-6) << where;
      EXPECT_LE(distance(results.dv, expected.dv), rounding) << where;
      // dq is a sum of keys times differences of numbers near 10, which are rounded: 10·ε of a key at least.
      EXPECT_LE(largest_difference(results.dq, expected.dq), rounding * factor) << where;
      EXPECT_LE(largest_difference(results.dk, expected.dk), rounding) << where;
    }
  }
}

// Every key alike: each has the same weight, whatever the scores.
TEST(FlashExtremes, WeightsOfLargeEqualScoresAreRightOrTold) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double factor : {1.0, 1e3, 1e9, 1e30}) {
      Problem problem = with_scores(factor, dtype);
      for (Array* operand : {&problem.q, &problem.k}) {
        for (std::size_t i = 0; i < operand->count(); ++i) operand->set(i, (*operand)[i % (2 * kHeadDim)]);
      }
      const Expected expected = naive(problem);
      const Results results = run(problem);
      const std::string where = std::string(name(dtype)) + " factor " + std::to_string(factor);
      EXPECT_LE(distance(results.o, expected.o), dtype == DType::bf16 ? 4e-3 : 2e-6) << where;
      if (factor < 1e6) {
        EXPECT_LE(distance(results.dv, expected.dv), dtype == DType::bf16 ? 1e-2 : 1e-3) << where;
        continue;
      }
      // Query 0 sees one key; ln 2 is lost beside the score of a query that sees more.
      EXPECT_TRUE(std::isfinite(results.lse[0])) << where;
      EXPECT_TRUE(std::isnan(results.lse[1]) && std::isnan(results.lse[249])) << where;
      EXPECT_TRUE(std::isnan(results.dv[0])) << where;
    }
  }
}

TEST(FlashExtremes, WeightsOfLargeEqualScoresAreRightInTwoNumbers) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double factor : {1.0, 1e3, 1e9, 1e30}) {
      Problem problem = with_scores(factor, dtype);
      for (Array* operand : {&problem.q, &problem.k}) {
        for (std::size_t i = 0; i < operand->count(); ++i) operand->set(i, (*operand)[i % (2 * kHeadDim)]);
      }
      const Expected expected = naive(problem);
      const Results results = run(problem, 1, 2);
      const std::string where = std::string(name(dtype)) + " factor " + std::to_string(factor);
      EXPECT_LE(distance(results.o, expected.o), dtype == DType::bf16 ? 4e-3 : 2e-6) << where;
      EXPECT_LE(distance(results.dv, expected.dv), dtype == DType::bf16 ? 1e-2 : 1e-3) << where;
      // Query i sees i + 1 keys.
      for (std::size_t i = 0; i < 250; ++i)
        EXPECT_NEAR(results.lse[2 * i + 1], std::log(static_cast<double>(i + 1)), 1e-5) << where << " query " << i;
    }
  }
}

TEST(FlashExtremes, OverflowIsNan) {
  for (const double sign : {1.0, -1.0}) {
    Problem problem({1, 60, 60, 1, 1, kHeadDim, causal(), {}}, DType::f32);
    for (std::size_t i = 0; i < problem.q.count(); ++i) {
      problem.q.set(i, 1e25);
      problem.k.set(i, sign * 1e25);
    }
    const Results results = run(problem);
    for (std::size_t i = 0; i < 60; ++i) {
      EXPECT_TRUE(std::isnan(results.lse[i])) << "query " << i;
      EXPECT_TRUE(std::isnan(results.o[i * kHeadDim])) << "query " << i;
      EXPECT_TRUE(std::isnan(results.dv[i * kHeadDim])) << "key " << i;
    }
  }
}

/// Rows [from, end) of [1, S, n, d] have the same bits.
void expect_same(const Array& actual, const Array& expected, std::size_t from, std::size_t end, const std::string& where) {
  const std::size_t row = actual.count() / actual.view().size(1);
  for (std::size_t i = from * row; i < end * row; ++i) {
    if (!(actual[i] == expected[i])) {
      ADD_FAILURE() << where << ": row " << i / row << " holds " << actual[i] << ", expected " << expected[i];
      return;
    }
  }
}

TEST(FlashExtremes, WhatIsNotFiniteReachesOnlyThoseThatSeeIt) {
  constexpr std::size_t kTokens = 700;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Problem whole({1, kTokens, kTokens, 2, 2, kHeadDim, causal(), {}}, dtype);
    const Results expected = run(whole);
    for (const double broken : {std::nan(""), kInfinity}) {
      for (const std::size_t token : {1U, 47U, 250U, 600U, 699U}) {
        for (Array Problem::*operand : {&Problem::q, &Problem::k, &Problem::v, &Problem::d_o}) {
          Problem problem = whole;
          // All of a token: a NaN or an infinity in the projections' input reaches all heads.
          const std::size_t row = 2 * kHeadDim;
          for (std::size_t i = token * row; i < (token + 1) * row; ++i) (problem.*operand).set(i, broken);
          const Results results = run(problem);
          const bool of_keys = operand == &Problem::k || operand == &Problem::v;
          const std::string where = std::string(name(dtype)) + " token " + std::to_string(token) +
                                    (of_keys ? " as key" : " as query") + " " + std::to_string(broken);
          expect_same(results.o, expected.o, 0, token, where + ", o");
          expect_same(results.dq, expected.dq, 0, token, where + ", dq");
          if (of_keys) {
            EXPECT_TRUE(std::isnan(results.dq[token * row])) << where;
            continue;
          }
          EXPECT_TRUE(std::isnan(results.dq[token * row])) << where;
          expect_same(results.o, expected.o, token + 1, kTokens, where + ", o");
          expect_same(results.dq, expected.dq, token + 1, kTokens, where + ", dq");
          expect_same(results.dk, expected.dk, token + 1, kTokens, where + ", dk");
          expect_same(results.dv, expected.dv, token + 1, kTokens, where + ", dv");
        }
      }
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::flash_extremes_kernel_test
