// Dropout inside flash attention against the textbook's formula in f64, whose factors are drawn one by one.
#include "core/kernels/flash.h"
#include "tests/core/kernel_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace tsp::test::flash_dropout_kernel_test {
namespace {

struct Case {
  std::size_t batch, queries, keys, heads, kv_heads, d;
  kernels::Attention attention;
};

struct Problem {
  Case shape;
  Array q, k, v, d_o;

  Problem(const Case& wanted, DType dtype)
      : shape(wanted),
        q(Array::normal(dtype, {wanted.batch, wanted.queries, wanted.heads, wanted.d}, 1)),
        k(Array::normal(dtype, {wanted.batch, wanted.keys, wanted.kv_heads, wanted.d}, 2)),
        v(Array::normal(dtype, {wanted.batch, wanted.keys, wanted.kv_heads, wanted.d}, 3)),
        d_o(Array::normal(dtype, {wanted.batch, wanted.queries, wanted.heads, wanted.d}, 4)) {}
};

/// SplitMix64 as its authors publish it (prng.di.unimi.it/splitmix64.c), after n numbers.
std::uint64_t number(std::uint64_t x, std::uint64_t n) {
  x += n * 0x9e3779b97f4a7c15U;
  std::uint64_t z = (x += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

double factor(const kernels::AttentionDropout& of, std::size_t b, std::size_t head, std::size_t i, std::size_t j) {
  const std::uint64_t key = number(number(of.draw.key, of.first_sequence + b), of.first_head + head);
  const double fraction = static_cast<double>(number(number(key, of.queries.of(i)), of.keys.of(j)) >> 11) / 9007199254740992.0;
  return fraction >= of.draw.probability ? 1 / (1 - of.draw.probability) : 0;
}

struct Expected {
  std::vector<double> o, dq, dk, dv;
};

Expected naive(const Problem& problem) {
  const Case& s = problem.shape;
  const auto& [scale, mask, map, dropout] = s.attention;
  Expected result{std::vector<double>(problem.q.count()), std::vector<double>(problem.q.count()),
                  std::vector<double>(problem.k.count()), std::vector<double>(problem.k.count())};
  for (std::size_t b = 0; b < s.batch; ++b) {
    for (std::size_t head = 0; head < s.heads; ++head) {
      const std::size_t kv = (map.first_query + head) / map.group - map.first_kv;
      const auto q_at = [&](std::size_t i, std::size_t c) { return ((b * s.queries + i) * s.heads + head) * s.d + c; };
      const auto k_at = [&](std::size_t j, std::size_t c) { return ((b * s.keys + j) * s.kv_heads + kv) * s.d + c; };
      for (std::size_t i = 0; i < s.queries; ++i) {
        std::vector<double> p(s.keys);
        std::vector<double> dp(s.keys);
        double sum = 0;
        for (std::size_t j = 0; j < s.keys; ++j) {
          if (mask.causal && mask.key_start + j > mask.query_start + i) continue;
          for (std::size_t c = 0; c < s.d; ++c) p[j] += scale * problem.q[q_at(i, c)] * problem.k[k_at(j, c)];
          sum += p[j] = std::exp(p[j]);
        }
        double mean = 0;
        for (std::size_t j = 0; j < s.keys; ++j) {
          if (sum != 0) p[j] /= sum;
          const double kept = factor(dropout, b, head, i, j);
          for (std::size_t c = 0; c < s.d; ++c) {
            result.o[q_at(i, c)] += kept * p[j] * problem.v[k_at(j, c)];
            result.dv[k_at(j, c)] += kept * p[j] * problem.d_o[q_at(i, c)];
            dp[j] += kept * problem.d_o[q_at(i, c)] * problem.v[k_at(j, c)];
          }
          mean += p[j] * dp[j];
        }
        for (std::size_t j = 0; j < s.keys; ++j) {
          const double ds = scale * p[j] * (dp[j] - mean);
          for (std::size_t c = 0; c < s.d; ++c) {
            result.dq[q_at(i, c)] += ds * problem.k[k_at(j, c)];
            result.dk[k_at(j, c)] += ds * problem.q[q_at(i, c)];
          }
        }
      }
    }
  }
  return result;
}

struct Results {
  Array o, lse, delta, dq, dk, dv;

  explicit Results(const Problem& problem)
      : o(problem.q.dtype(), {problem.shape.batch, problem.shape.queries, problem.shape.heads, problem.shape.d}),
        lse(sums(problem.q.dtype()), {problem.shape.batch, problem.shape.heads, problem.shape.queries}),
        delta(lse),
        dq(sums(problem.q.dtype()), {problem.shape.batch, problem.shape.queries, problem.shape.heads, problem.shape.d}),
        dk(sums(problem.q.dtype()), {problem.shape.batch, problem.shape.keys, problem.shape.kv_heads, problem.shape.d}),
        dv(dk) {}
};

Results run(const Problem& problem, std::size_t threads = 1) {
  Results results(problem);
  Bench bench(threads, threads * (std::size_t{2} << 20));
  const kernels::Compute on = bench.on();
  const kernels::Attention& attention = problem.shape.attention;
  kernels::flash_forward(on, attention, results.o.view(), results.lse.view(), problem.q.view(), problem.k.view(),
                         problem.v.view());
  kernels::flash_delta(on, results.delta.view(), problem.d_o.view(), results.o.view());
  kernels::flash_backward(on, attention, results.dq.view(), results.dk.view(), results.dv.view(), problem.d_o.view(),
                          results.lse.view(), results.delta.view(), problem.q.view(), problem.k.view(), problem.v.view());
  return results;
}

kernels::Attention dropping(std::size_t d, const kernels::Mask& mask, const kernels::HeadMap& map,
                            const kernels::AttentionDropout& dropout) {
  return {1 / std::sqrt(static_cast<double>(d)), mask, map, dropout};
}

void check(const Case& shape, DType dtype, std::size_t threads = 1) {
  const Problem problem(shape, dtype);
  const Expected expected = naive(problem);
  const Results results = run(problem, threads);
  const double bound = dtype == DType::bf16 ? 1e-2 : dtype == DType::f32 ? 4e-6 : 1e-12;
  const std::string where = std::string(name(dtype)) + " Sq " + std::to_string(shape.queries) + " Sk " +
                            std::to_string(shape.keys) + " n " + std::to_string(shape.heads);
  EXPECT_LE(distance(results.o, expected.o), bound) << where;
  EXPECT_LE(distance(results.dq, expected.dq), bound) << where;
  EXPECT_LE(distance(results.dk, expected.dk), bound) << where;
  EXPECT_LE(distance(results.dv, expected.dv), bound) << where;
}

const kernels::Mask kCausal = kernels::Mask::from_positions(0, 0);

TEST(FlashDropout, EqualsTheFormula) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const double probability : {0.1, 0.7}) {
      const kernels::AttentionDropout dropout{.draw = {probability, 77}, .first_sequence = 3, .first_head = 5};
      check({1, 1, 3, 1, 1, 4, dropping(4, {}, {}, dropout)}, dtype);
      check({2, 37, 37, 4, 2, 8, dropping(8, kCausal, {.group = 2}, dropout)}, dtype);
      check({1, 300, 300, 1, 1, 16, dropping(16, kCausal, {}, dropout)}, dtype);
    }
  }
}

TEST(FlashDropout, EqualsTheFormulaOverManyTilesAndThreads) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 1}};
  check({1, 515, 1100, 1, 1, 16, dropping(16, {}, {}, dropout)}, DType::f32, 2);
  check({1, 300, 911, 2, 1, 16, dropping(16, kernels::Mask::from_positions(611, 0), {.group = 2}, dropout)}, DType::f64, 3);
}

/// A rank's two chunks stand apart in the sequence; so may the keys that come to it.
TEST(FlashDropout, DrawsByPositionsWhereverTheRowsLie) {
  kernels::AttentionDropout dropout{.draw = {0.4, 9}};
  dropout.queries = {.start = 3, .count = 20, .second = 90};
  dropout.keys = {.start = 30, .count = 11, .second = 60};
  check({2, 47, 33, 2, 2, 8, dropping(8, {}, {}, dropout)}, DType::f64);
}

/// Parts of heads, sequences and queries drop what the whole drops.
TEST(FlashDropout, IsThatOfTheWholeInEveryPart) {
  const kernels::AttentionDropout dropout{.draw = {0.25, 5}};
  const Problem whole({3, 60, 60, 4, 4, 8, dropping(8, kCausal, {}, dropout)}, DType::f64);
  const Results expected = run(whole);
  Results part(whole);
  Bench bench;
  const auto rows = [](const auto& view) { return view.slice(0, 1, 2).slice(1, 25, 35).slice(2, 2, 2); };
  const auto keys = [](const auto& view) { return view.slice(0, 1, 2).slice(2, 2, 2); };
  kernels::Attention attention = whole.shape.attention;
  attention.mask = kernels::Mask::from_positions(25, 0);
  attention.dropout.first_sequence = 1;
  attention.dropout = attention.dropout.of(2, {.start = 25}, {});
  kernels::flash_forward(bench.on(), attention, rows(part.o.view()),
                         part.lse.view().slice(0, 1, 2).slice(1, 2, 2).slice(2, 25, 35), rows(whole.q.view()),
                         keys(whole.k.view()), keys(whole.v.view()));
  double difference = 0;
  double norm = 0;
  for (std::size_t b = 1; b < 3; ++b) {
    for (std::size_t i = 25; i < 60; ++i) {
      for (std::size_t at = 16; at < 32; ++at) {
        const std::size_t element = (b * 60 + i) * 32 + at;
        difference += std::abs(part.o[element] - expected.o[element]);
        norm += std::abs(expected.o[element]);
      }
    }
  }
  EXPECT_GT(norm, 0);
  EXPECT_LE(difference, 1e-13 * norm);
}

TEST(FlashDropout, GradientsAreThoseOfFiniteDifferences) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 21}};
  Problem problem({2, 7, 7, 4, 2, 3, dropping(3, kCausal, {.group = 2}, dropout)}, DType::f64);
  const Results results = run(problem);
  const auto loss = [&] { return weighted(run(problem).o, problem.d_o); };
  EXPECT_LE(distance(results.dq, finite_differences(problem.q, loss)), 1e-8);
  EXPECT_LE(distance(results.dk, finite_differences(problem.k, loss)), 1e-8);
  EXPECT_LE(distance(results.dv, finite_differences(problem.v, loss)), 1e-8);
}

bool same_bits(const Array& a, const Array& b) {
  const std::size_t bytes = a.count() * size_of(a.dtype());
  return a.count() == b.count() && std::memcmp(a.view().data(), b.view().data(), bytes) == 0;
}

TEST(FlashDropout, IsTheSameToTheBitForAnyNumberOfThreads) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 4}};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Problem problem({1, 700, 700, 2, 1, 16, dropping(16, kCausal, {.group = 2}, dropout)}, dtype);
    const Results one = run(problem);
    for (const std::size_t threads : {2U, 3U, 5U}) {
      const Results many = run(problem, threads);
      EXPECT_TRUE(same_bits(one.o, many.o) && same_bits(one.lse, many.lse)) << threads << " threads, " << name(dtype);
      EXPECT_TRUE(same_bits(one.dq, many.dq) && same_bits(one.dk, many.dk) && same_bits(one.dv, many.dv))
          << threads << " threads, " << name(dtype);
    }
  }
}

/// Which key stays: [B, Sq, n, Sk]. With equal scores and the unit matrix as values, an output is a row of the factors over Sk.
std::vector<bool> stays(std::size_t batch, std::size_t queries, std::size_t keys, std::size_t heads,
                        const kernels::AttentionDropout& dropout) {
  Problem problem({batch, queries, keys, heads, heads, keys, dropping(1, {}, {}, dropout)}, DType::f32);
  for (std::size_t i = 0; i < problem.q.count(); ++i) problem.q.set(i, 0);
  for (std::size_t i = 0; i < problem.v.count(); ++i) problem.v.set(i, i % keys == i / (heads * keys) % keys ? 1 : 0);
  const Results results = run(problem);
  std::vector<bool> kept(results.o.count());
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = results.o[i] != 0;
  return kept;
}

/// The share that falls is p, and neighbours (of sequence, query, head, key; and other keys' draws) fall independently.
TEST(FlashDropout, DropsTheShareThatItIsAskedToIndependentlyInEveryDirection) {
  constexpr std::size_t kBatch = 2;
  constexpr std::size_t kQueries = 300;
  constexpr std::size_t kKeys = 64;
  constexpr std::size_t kHeads = 4;
  constexpr double p = 0.2;
  const std::vector<bool> kept = stays(kBatch, kQueries, kKeys, kHeads, {.draw = {p, 8}});
  const auto expect_share = [](std::size_t count, std::size_t of, double share, const std::string& what) {
    const auto n = static_cast<double>(of);
    EXPECT_NEAR(static_cast<double>(count) / n, share, 5 * std::sqrt(share * (1 - share) / n)) << what;
  };
  const auto counted = [](const std::vector<bool>& which) {
    return static_cast<std::size_t>(std::count(which.begin(), which.end(), true));
  };
  expect_share(counted(kept), kept.size(), 1 - p, "all");
  constexpr double kBothAlike = p * p + (1 - p) * (1 - p);
  const std::size_t strides[] = {kQueries * kHeads * kKeys, kHeads * kKeys, kKeys, 1};
  const char* const names[] = {"sequences", "queries", "heads", "keys"};
  const std::size_t sizes[] = {kBatch, kQueries, kHeads, kKeys};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    std::size_t alike = 0;
    std::size_t pairs = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (i / strides[axis] % sizes[axis] + 1 == sizes[axis]) continue;
      ++pairs;
      alike += static_cast<std::size_t>(kept[i] == kept[i + strides[axis]]);
    }
    expect_share(alike, pairs, kBothAlike, names[axis]);
  }
  const std::vector<bool> other = stays(kBatch, kQueries, kKeys, kHeads, {.draw = {p, 9}});
  std::size_t alike = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) alike += static_cast<std::size_t>(kept[i] == other[i]);
  expect_share(alike, kept.size(), kBothAlike, "another key");
}

/// Every split of queries makes other tiles; not one element may fall otherwise.
TEST(FlashDropout, TheSameElementsFallHoweverTheQueriesAreCut) {
  constexpr std::size_t kQueries = 600;
  constexpr std::size_t kKeys = 32;
  const kernels::AttentionDropout dropout{.draw = {0.5, 3}, .first_sequence = 2, .first_head = 1};
  const std::vector<bool> whole = stays(1, kQueries, kKeys, 1, dropout);
  for (const std::size_t first : {1U, 7U, 255U, 256U, 300U}) {
    const std::vector<bool> part = stays(1, kQueries - first, kKeys, 1, dropout.of(1, {.start = first}, {}));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first * kKeys)))
        << "from query " << first;
  }
}

TEST(FlashDropout, RefusesWhatIsNoProbability) {
  for (const double probability : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
    const Problem problem({1, 4, 4, 1, 1, 2, dropping(2, {}, {}, {.draw = {probability, 1}})}, DType::f32);
    EXPECT_THROW(run(problem), std::invalid_argument);
  }
}

}  // namespace
}  // namespace tsp::test::flash_dropout_kernel_test
