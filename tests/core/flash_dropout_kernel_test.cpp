// Dropout inside flash attention against the textbook's formula in f64, whose factors are drawn one by one.
#include "tests/core/flash_support.h"

#include <algorithm>
#include <limits>

namespace tsprun::detail::test::flash_dropout_kernel_test {
namespace {

using namespace flash;

const kernels::Mask kCausal = kernels::Mask::from_positions(0, 0);

TEST(FlashDropout, EqualsTheFormula) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const double probability : {0.1, 0.7}) {
      const kernels::AttentionDropout dropout{.draw = {probability, 77}, .first_sequence = 3, .first_head = 5};
      check({1, 1, 3, 1, 1, 4, {}, {}, dropout}, dtype);
      check({2, 37, 37, 4, 2, 8, kCausal, {.group = 2}, dropout}, dtype);
      check({1, 300, 300, 1, 1, 16, kCausal, {}, dropout}, dtype);
    }
  }
}

TEST(FlashDropout, EqualsTheFormulaOverManyTilesAndThreads) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 1}};
  check({1, 515, 1100, 1, 1, 16, {}, {}, dropout}, DType::f32, 2);
  check({1, 300, 911, 2, 1, 16, kernels::Mask::from_positions(611, 0), {.group = 2}, dropout}, DType::f64, 3);
}

/// A rank's two chunks stand apart in the sequence; so may the keys that come to it.
TEST(FlashDropout, DrawsByPositionsWhereverTheRowsLie) {
  kernels::AttentionDropout dropout{.draw = {0.4, 9}};
  dropout.queries = {.start = 3, .count = 20, .second = 90};
  dropout.keys = {.start = 30, .count = 11, .second = 60};
  check({2, 47, 33, 2, 2, 8, {}, {}, dropout}, DType::f64);
}

/// Parts of heads, sequences and queries drop what the whole drops.
TEST(FlashDropout, IsThatOfTheWholeInEveryPart) {
  const kernels::AttentionDropout dropout{.draw = {0.25, 5}};
  const Problem whole({3, 60, 60, 4, 4, 8, kCausal, {}, dropout}, DType::f64);
  const Results expected = run(whole);
  Results part(whole);
  Bench bench;
  const auto rows = [](const auto& view) { return view.slice(0, 1, 2).slice(1, 25, 35).slice(2, 2, 2); };
  const auto keys = [](const auto& view) { return view.slice(0, 1, 2).slice(2, 2, 2); };
  kernels::Attention attention = whole.attention;
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
  Problem problem({2, 7, 7, 4, 2, 3, kCausal, {.group = 2}, dropout}, DType::f64);
  const Results results = run(problem);
  const auto loss = [&] { return weighted(run(problem).o, problem.d_o); };
  EXPECT_LE(distance(results.dq, finite_differences(problem.q, loss)), 1e-8);
  EXPECT_LE(distance(results.dk, finite_differences(problem.k, loss)), 1e-8);
  EXPECT_LE(distance(results.dv, finite_differences(problem.v, loss)), 1e-8);
}

TEST(FlashDropout, IsTheSameToTheBitForAnyNumberOfThreads) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 4}};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Problem problem({1, 700, 700, 2, 1, 16, kCausal, {.group = 2}, dropout}, dtype);
    const Results one = run(problem);
    for (const std::size_t threads : {2U, 3U, 5U}) {
      const Results many = run(problem, threads);
      EXPECT_TRUE(one.o == many.o && one.lse == many.lse) << threads << " threads, " << name(dtype);
      EXPECT_TRUE(one.dq == many.dq && one.dk == many.dk && one.dv == many.dv) << threads << " threads, " << name(dtype);
    }
  }
}

/// Which key stays: [B, Sq, n, Sk]. With equal scores and the unit matrix as values, an output is a row of the factors over Sk.
std::vector<bool> stays(std::size_t batch, std::size_t queries, std::size_t keys, std::size_t heads,
                        const kernels::AttentionDropout& dropout) {
  Problem problem({batch, queries, keys, heads, heads, keys, {}, {}, dropout}, DType::f32);
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
    const Problem problem({1, 4, 4, 1, 1, 2, {}, {}, {.draw = {probability, 1}}}, DType::f32);
    EXPECT_THROW(run(problem), std::invalid_argument);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::flash_dropout_kernel_test
