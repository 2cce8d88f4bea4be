// Flash attention of bf16 operands at every level that this machine offers: in bf16 units from avx512_bf16 on, widened to f32
// below. Every element is held against the textbook's formula in f64, within a limit that follows from the roundings that
// flash.h names. Also the parts that only bf16 units need: wide and cut pairs of pair_panels.h, and the rounding of tiles.
#include "core/kernels/flash_pairs.h"

#include "core/kernels/level.h"
#include "core/kernels/pair_panels.h"
#include "tests/core/flash_support.h"

namespace tsprun::detail::test::flash_pairs_kernel_test {
namespace {

using namespace tsprun::detail::test::flash;
using kernels::Level;
using kernels::Write;
namespace pairs = kernels::pairs;

kernels::Mask causal(std::size_t query_start = 0, std::size_t key_start = 0) {
  return kernels::Mask::from_positions(query_start, key_start);
}

/// Largest relative error of rounding to f32 and to bf16: half a unit in the last place of 1.
const double kUnit = std::ldexp(1.0, -24);
const double kNarrowUnit = std::ldexp(1.0, -8);

class FlashLevels : public testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    if (!kernels::offers(GetParam())) {
      GTEST_SKIP() << "this machine offers " << name(kernels::best_level()) << " at most";
    }
    kernels::set_level(GetParam());
  }
  void TearDown() override {
    if (!IsSkipped()) kernels::set_level(before_);
  }

 private:
  Level before_ = kernels::level();
};
INSTANTIATE_TEST_SUITE_P(At, FlashLevels,
                         testing::Values(Level::baseline, Level::avx2, Level::avx512, Level::avx512_bf16, Level::amx_bf16),
                         [](const auto& of) { return std::string(name(of.param)); });

/// Results of the formula, and the limits of each element's error. The backward pass is given lse and delta of the formula,
/// rounded to f32.
struct Judged {
  Expected expected;
  Expected limit;
  std::vector<double> delta;  // [B, n, Sq]
};

/// To first order: a score of d products is wrong by d·u·Σ|q·k|; its exponential by scale times that, relative, and some u of its
/// own; a sum of n terms by n·u·Σ|term|. Rounding a probability or dS to bf16, of 8 significant bits, is wrong by up to 2⁻⁸ of
/// it. Limits leave a few u of slack.
Judged judged(const Problem& problem) {
  const Case& s = problem.shape;
  const std::vector<double> qs = problem.q.values();
  const std::vector<double> ks = problem.k.values();
  const std::vector<double> vs = problem.v.values();
  const std::vector<double> d_os = problem.d_o.values();
  const double scale = problem.attention.scale;
  const double narrow = kernels::flash::in_pairs(problem.q.dtype()) ? kNarrowUnit : 0;
  Judged of{naive(problem), {}, std::vector<double>(s.batch * s.heads * s.queries)};
  Expected& limit = of.limit;
  limit = {std::vector<double>(problem.q.count()), std::vector<double>(of.delta.size()), std::vector<double>(problem.q.count()),
           std::vector<double>(problem.k.count()), std::vector<double>(problem.k.count())};
  const auto units = [](std::size_t count) { return static_cast<double>(count + 8) * kUnit; };
  const double tiles = 3 + static_cast<double>(s.keys) / 128;  // a tile's factor is an exponential, too
  for (std::size_t b = 0; b < s.batch; ++b) {
    for (std::size_t head = 0; head < s.heads; ++head) {
      const std::size_t kv = (s.map.first_query + head) / s.map.group - s.map.first_kv;
      for (std::size_t i = 0; i < s.queries; ++i) {
        const std::size_t row = (b * s.heads + head) * s.queries + i;
        const std::size_t q = ((b * s.queries + i) * s.heads + head) * s.d;
        const auto k_of = [&](std::size_t j) { return ((b * s.keys + j) * s.kv_heads + kv) * s.d; };
        std::size_t hidden = 0;  // it sees keys [hidden, seen)
        while (hidden < s.keys && !s.sees(i, hidden)) ++hidden;
        std::size_t seen = hidden;
        while (seen < s.keys && s.sees(i, seen)) ++seen;
        for (std::size_t c = 0; c < s.d; ++c) of.delta[row] += d_os[q + c] * of.expected.o[q + c];
        std::vector<double> scores(seen);
        double largest = 0;  // Σ|q·k| of any key
        for (std::size_t j = hidden; j < seen; ++j) {
          double size = 0;
          for (std::size_t c = 0; c < s.d; ++c) {
            const double product = qs[q + c] * ks[k_of(j) + c];
            scores[j] += product;
            size += std::abs(product);
          }
          largest = std::max(largest, size);
        }
        const double lse = of.expected.lse[row];
        const double power = 2 * scale * units(s.d) * largest + 8 * kUnit;
        const double sum = 2 * tiles * power + 2 * units(s.keys);
        limit.lse[row] = seen == hidden ? 0 : (power + sum) / scale + 8 * kUnit * (std::abs(lse) + largest);
        const double again = power + 8 * kUnit * scale * std::abs(lse);  // of a probability in the backward pass
        for (std::size_t j = hidden; j < seen; ++j) {
          const double kept = factor(s.dropout, b, head, i, j);
          const double p = std::exp(scale * (scores[j] - lse));
          double dp = 0;
          double size = 0;
          for (std::size_t c = 0; c < s.d; ++c) {
            const double product = kept * d_os[q + c] * vs[k_of(j) + c];
            dp += product;
            size += std::abs(product);
          }
          const double ds = std::abs(scale * p * (dp - of.delta[row]));
          const double ds_limit =
              (ds * (again + 8 * kUnit) + scale * p * (1 + again) * (units(s.d) * size + 8 * kUnit * std::abs(of.delta[row]))) *
                  (1 + narrow) +
              ds * narrow;
          for (std::size_t c = 0; c < s.d; ++c) {
            limit.o[q + c] += kept * p * std::abs(vs[k_of(j) + c]) * (sum * (1 + narrow) + narrow);
            limit.dv[k_of(j) + c] +=
                kept * p * std::abs(d_os[q + c]) * (again * (1 + narrow) + narrow + units(s.queries * s.map.group));
            limit.dq[q + c] += std::abs(ks[k_of(j) + c]) * (ds_limit + units(s.keys) * ds);
            limit.dk[k_of(j) + c] += std::abs(qs[q + c]) * (ds_limit + units(s.queries * s.map.group) * ds);
          }
        }
      }
    }
  }
  return of;
}

void expect_within(const Array& actual, const std::vector<double>& expected, const std::vector<double>& limit,
                   const std::string& what) {
  ASSERT_EQ(actual.count(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // also −∞
    ASSERT_LE(std::abs(actual[i] - expected[i]), limit[i] + 1e-30)
        << what << ", element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

/// Runs both passes of a problem, the output in f32, and the backward pass on the formula's lse and delta.
Results run_judged(const Problem& problem, const Judged& of, std::size_t threads) {
  Results results(problem);
  results.o = Array(DType::f32, {problem.shape.batch, problem.shape.queries, problem.shape.heads, problem.shape.d});
  Array lse = results.lse;
  for (std::size_t i = 0; i < of.delta.size(); ++i) {
    lse.set(i, of.expected.lse[i]);
    results.delta.set(i, of.delta[i]);
  }
  Bench bench(threads, std::max(kernels::flash_forward_workspace(DType::bf16, problem.shape.d, threads),
                                kernels::flash_backward_workspace(DType::bf16, problem.shape.d, threads)));
  kernels::flash_forward(bench.on(), problem.attention, results.o.view(), results.lse.view(), problem.q.view(), problem.k.view(),
                         problem.v.view());
  kernels::flash_backward(bench.on(), problem.attention, results.dq.view(), results.dk.view(), results.dv.view(),
                          problem.d_o.view(), lse.view(), results.delta.view(), problem.q.view(), problem.k.view(),
                          problem.v.view());
  return results;
}

void judge(const Case& shape, std::size_t threads = 1) {
  const Problem problem(shape, DType::bf16);
  const Judged of = judged(problem);
  const Results results = run_judged(problem, of, threads);
  const std::string where = "Sq " + std::to_string(shape.queries) + " Sk " + std::to_string(shape.keys) + " n " +
                            std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + " d " + std::to_string(shape.d) +
                            (shape.mask.causal ? " causal " : " full ") + std::to_string(shape.mask.query_start) + "/" +
                            std::to_string(shape.mask.key_start) + " window " + std::to_string(shape.mask.window);
  expect_within(results.o, of.expected.o, of.limit.o, where + ", o");
  expect_within(results.lse, of.expected.lse, of.limit.lse, where + ", lse");
  expect_within(results.dq, of.expected.dq, of.limit.dq, where + ", dq");
  expect_within(results.dk, of.expected.dk, of.limit.dk, where + ", dk");
  expect_within(results.dv, of.expected.dv, of.limit.dv, where + ", dv");
}

TEST_P(FlashLevels, Bf16IsWithinTheRoundingsOfItsElements) {
  for (const kernels::Mask& mask : {kernels::Mask::none(), causal()}) {
    for (const std::size_t d : {1U, 2U, 15U, 48U, 63U, 64U, 65U, 96U, 128U, 129U}) {
      judge({1, 1, 1, 1, 1, d, mask, {}});
      judge({2, 3, 2, 2, 2, d, mask, {}});
      judge({1, 49, 51, 2, 1, d, mask, {.group = 2}}, 2);
    }
    judge({1, 97, 193, 1, 1, 63, mask, {}});
    judge({1, 250, 385, 3, 1, 64, mask, {.group = 3}}, 3);
    judge({1, 200, 579, 5, 4, 8, mask, {.group = 3, .first_query = 5, .first_kv = 1}}, 2);
  }
}

TEST_P(FlashLevels, Bf16IsSoUnderMasksThatNoPairIsAlignedTo) {
  for (const auto& [query_start, key_start] : {std::pair<std::size_t, std::size_t>{1, 0}, {0, 1}, {99, 50}, {50, 99}, {578, 0}}) {
    judge({1, 61, 145, 1, 1, 17, causal(query_start, key_start), {}});
    judge({1, 211, 640, 2, 2, 8, causal(query_start, key_start), {}}, 2);
  }
}

TEST_P(FlashLevels, Bf16IsSoInWindowsThatNoPairIsAlignedTo) {
  const auto window = [](std::size_t size, std::size_t query_start = 0, std::size_t key_start = 0) {
    return kernels::Mask::from_positions(query_start, key_start, size);
  };
  for (const std::size_t size : {1U, 2U, 33U, 95U, 250U}) {
    judge({1, 61, 61, 1, 1, 17, window(size), {}});
    judge({1, 301, 301, 2, 1, 65, window(size), {.group = 2}}, 2);
    judge({1, 211, 800, 2, 2, 8, window(size, 589), {}}, 2);
    judge({1, 199, 640, 1, 1, 8, window(size, 300, 3), {}});  // the last queries see nothing in the smaller windows
  }
}

TEST_P(FlashLevels, Bf16IsSoWithDropout) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 77}, .first_sequence = 3, .first_head = 5};
  for (const kernels::Mask& mask : {kernels::Mask::none(), causal(3, 0)}) {
    judge({2, 5, 3, 2, 1, 4, mask, {.group = 2}, dropout});
    judge({1, 131, 200, 2, 1, 65, mask, {.group = 2}, dropout}, 2);
  }
}

TEST_P(FlashLevels, Bf16AddsItsGradientsToWhatTheViewsHold) {
  const Problem problem({1, 101, 130, 4, 2, 33, causal(29, 0), {.group = 2}}, DType::bf16);
  const Judged of = judged(problem);
  Results results = run_judged(problem, of, 1);
  Array lse = results.lse;
  for (std::size_t i = 0; i < of.delta.size(); ++i) lse.set(i, of.expected.lse[i]);
  const auto check = [&](const Array& after, const Array& before, const std::vector<double>& expected,
                         const std::vector<double>& limit, const std::string& what) {
    std::vector<double> sums = expected;
    std::vector<double> limits = limit;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += before[i];
      limits[i] += 2 * 210 * kUnit * std::abs(before[i]);  // one rounding of each sum, of queries of two heads or of keys
    }
    expect_within(after, sums, limits, what);
  };
  Array dq = Array::normal(DType::f32, {1, 101, 4, 33}, 7);
  Array dk = Array::normal(DType::f32, {1, 130, 2, 33}, 8);
  Array dv = Array::normal(DType::f32, {1, 130, 2, 33}, 9);
  const Array before_dq = dq;
  const Array before_dk = dk;
  const Array before_dv = dv;
  Bench bench;
  kernels::flash_backward(bench.on(), problem.attention, dq.view(), dk.view(), dv.view(), problem.d_o.view(), lse.view(),
                          results.delta.view(), problem.q.view(), problem.k.view(), problem.v.view(), Write::add);
  check(dq, before_dq, of.expected.dq, of.limit.dq, "dq");
  check(dk, before_dk, of.expected.dk, of.limit.dk, "dk");
  check(dv, before_dv, of.expected.dv, of.limit.dv, "dv");
}

TEST_P(FlashLevels, Bf16HasTheSameBitsForAnyNumberOfThreads) {
  for (const std::size_t kv_heads : {1U, 5U}) {
    const Problem problem({1, 301, 601, 5, kv_heads, 65, causal(300, 0), {.group = 5 / kv_heads}}, DType::bf16);
    const Results one = run(problem, 1);
    for (const std::size_t threads : {2U, 3U, 5U}) {
      const Results many = run(problem, threads);
      EXPECT_TRUE(one.o == many.o && one.lse == many.lse && one.dq == many.dq && one.dk == many.dk && one.dv == many.dv)
          << threads << " threads, " << kv_heads << " K/V heads";
    }
  }
}

// A pair holds two keys or two queries, of which one may be hidden and the other not.
TEST_P(FlashLevels, WhatIsHiddenInBf16DoesntReachItsNeighbours) {
  constexpr std::size_t kTokens = 600;
  constexpr std::size_t kHeadDim = 17;
  for (const std::size_t start : {0U, 1U}) {  // key j is seen by queries from j − start on
    const Problem whole({1, kTokens, kTokens, 1, 1, kHeadDim, causal(start, 0), {}}, DType::bf16);
    const Results expected = run(whole);
    const auto same = [](const Array& actual, const Array& wanted, std::size_t from, std::size_t end) {
      for (std::size_t i = from * kHeadDim; i < end * kHeadDim; ++i) {
        if (!(actual[i] == wanted[i])) return false;
      }
      return true;
    };
    for (const double broken : {std::nan(""), -kInfinity}) {
      for (const std::size_t token : {2U, 3U, 48U, 49U, 95U, 191U, 192U, 193U, 575U, 576U, 577U}) {
        for (Array Problem::*operand : {&Problem::k, &Problem::v, &Problem::q, &Problem::d_o}) {
          Problem problem = whole;
          for (std::size_t c = 0; c < kHeadDim; ++c) (problem.*operand).set(token * kHeadDim + c, broken);
          const Results results = run(problem);
          const bool of_keys = operand == &Problem::k || operand == &Problem::v;
          const std::string where = std::string(of_keys ? "key " : "query ") + std::to_string(token) + " of start " +
                                    std::to_string(start) + ", " + std::to_string(broken);
          const std::size_t blind = of_keys ? token - start : token;
          EXPECT_TRUE(same(results.o, expected.o, 0, blind)) << where;
          EXPECT_TRUE(same(results.dq, expected.dq, 0, blind)) << where;
          EXPECT_TRUE(std::isnan(results.dq[blind * kHeadDim])) << where;
          if (of_keys) continue;
          EXPECT_TRUE(same(results.o, expected.o, token + 1, kTokens)) << where;
          EXPECT_TRUE(same(results.dq, expected.dq, token + 1, kTokens)) << where;
          EXPECT_TRUE(same(results.dk, expected.dk, token + start + 1, kTokens)) << where;
          EXPECT_TRUE(same(results.dv, expected.dv, token + start + 1, kTokens)) << where;
        }
      }
    }
  }
}

// A forecast doesn't know the level of the ranks.
TEST_P(FlashLevels, NeedTheWorkspaceOfTheBestLevel) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    for (const std::size_t d : {1U, 33U, 64U, 65U, 128U, 200U}) {
      const auto bytes = [&] {
        return std::pair(kernels::flash_forward_workspace(dtype, d, 2), kernels::flash_backward_workspace(dtype, d, 2));
      };
      const auto here = bytes();
      kernels::set_level(kernels::best_level());
      EXPECT_EQ(bytes(), here) << name(dtype) << " d " << d;
      kernels::set_level(GetParam());
    }
  }
}

/// The order of sums that pair_panels.h promises.
float chain(float sum, const std::vector<float>& a, const std::vector<float>& b, std::size_t first) {
  for (std::size_t pair = 0; pair < a.size(); pair += 2) {
    for (const std::size_t l : {pair + 1, pair}) {
      if (l >= first && l < a.size()) sum = std::fmaf(a[l], b[l], sum);
    }
  }
  return sum;
}

TEST(FlashPairs, ProductsOfWidePanelsLeaveOutHalvesOfPairs) {
  if (kernels::level() < Level::avx512_bf16) GTEST_SKIP() << "this machine has no AVX512_BF16";
  kernels::set_level(Level::avx512_bf16);
  for (const std::size_t columns : {1U, 16U, 31U, 48U, 50U, 64U}) {
    for (const std::size_t depth : {2U, 3U, 8U, 31U, 96U}) {
      for (const std::size_t rows : {1U, 6U, 7U, 37U}) {
        for (const std::size_t first : {0U, 1U, 2U, 7U}) {
          if (first >= depth) continue;
          // Summands beyond both ends are there, and infinite: of an odd depth, one; and the first ones, which are skipped.
          const std::size_t whole = (depth + 1) / 2 * 2;
          Array a = Array::normal(DType::bf16, {whole, rows}, 1);
          Array b = Array::normal(DType::bf16, {whole, columns}, 2);
          for (std::size_t l = 0; l < whole; ++l) {
            if (l >= first && l < depth) continue;
            for (std::size_t i = 0; i < rows; ++i) a.set(l * rows + i, kInfinity);
            for (std::size_t j = 0; j < columns; ++j) b.set(l * columns + j, std::nan(""));
          }
          std::vector<bf16> turned(pairs::packed_elements(rows, whole, pairs::kPairRows));
          std::vector<bf16> packed(pairs::packed_elements(columns, whole, pairs::kWideColumns));
          pairs::pack(turned.data(), pairs::kPairRows, a.view());
          pairs::pack(packed.data(), pairs::kWideColumns, b.view());
          std::vector<bf16> in_rows(rows * whole);
          for (std::size_t i = 0; i < in_rows.size(); ++i) {
            in_rows[i] = bf16(static_cast<float>(a[i % whole * rows + i / whole]));
          }
          for (const bool is_turned : {true, false}) {
            Array c = Array::normal(DType::f32, {rows, columns}, 3);
            const Array before = c;
            pairs::multiply({.rows = rows,
                             .columns = columns,
                             .depth = depth,
                             .skip = first,
                             .a = is_turned ? turned.data() : in_rows.data(),
                             .a_step = whole,
                             .a_turned = is_turned,
                             .b = packed.data(),
                             .b_width = pairs::kWideColumns,
                             .c = c.view().as<float>(),
                             .c_step = columns,
                             .add = true});
            for (std::size_t i = 0; i < rows; ++i) {
              for (std::size_t j = 0; j < columns; ++j) {
                std::vector<float> a_row;
                std::vector<float> b_column;
                for (std::size_t l = 0; l < depth; ++l) {
                  a_row.push_back(static_cast<float>(a[l * rows + i]));
                  b_column.push_back(static_cast<float>(b[l * columns + j]));
                }
                const std::size_t at = i * columns + j;
                ASSERT_EQ(c[at], static_cast<double>(chain(static_cast<float>(before[at]), a_row, b_column, first)))
                    << rows << "x" << columns << "x" << depth << " from " << first << (is_turned ? " turned" : "") << " at " << i
                    << ", " << j;
              }
            }
          }
        }
      }
    }
  }
}

TEST(FlashPairs, TilesAreRoundedToNearestEven) {
  if (kernels::level() < Level::avx512_bf16) GTEST_SKIP() << "this machine has no AVX512_BF16";
  constexpr std::size_t kStep = 48;
  for (const std::size_t depth : {1U, 2U, 7U, 40U}) {
    Array tile = Array::normal(DType::f32, {depth, kStep}, 5);
    // Ties, to even below and above; what no longer is a number; what rounds to infinity.
    const float special[] = {
        1 + 0x1p-8F, 1 + 0x3p-8F, -1 - 0x1p-8F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(), 0.0F};
    for (std::size_t i = 0; i < std::size(special); ++i) tile.set(i * 5, static_cast<double>(special[i]));
    const auto* from = tile.view().as<float>();
    for (const std::size_t lines : {1U, 16U, 17U, 48U}) {
      std::vector<bf16> turned(pairs::packed_elements(kStep, depth, pairs::kPairRows));
      std::vector<bf16> rows(depth * kStep);
      kernels::flash::round_turned(turned.data(), from, depth, lines, kStep);
      kernels::flash::round_rows(rows.data(), from, depth, lines, kStep);
      for (std::size_t l = 0; l < depth; ++l) {
        for (std::size_t i = 0; i < lines; ++i) {
          const std::uint16_t expected = bf16(from[l * kStep + i]).bits;
          const std::size_t panel = i / pairs::kPairRows * pairs::packed_elements(1, depth, pairs::kPairRows);
          ASSERT_EQ(turned[panel + l / 2 * 2 * pairs::kPairRows + i % pairs::kPairRows * 2 + l % 2].bits, expected)
              << l << ", " << i;
          ASSERT_EQ(rows[l * kStep + i].bits, expected) << l << ", " << i;
        }
      }
    }
  }
  const std::vector<float> nan(16, std::numeric_limits<float>::quiet_NaN());
  std::vector<bf16> rounded(32);
  kernels::flash::round_turned(rounded.data(), nan.data(), 1, 1, 16);
  EXPECT_TRUE(std::isnan(static_cast<float>(rounded[0])));
}

TEST(FlashPairs, FindsWhatIsNotFiniteInBf16) {
  std::vector<bf16> values(100, bf16(std::numeric_limits<float>::lowest() / 2));
  EXPECT_TRUE(kernels::flash::all_finite(values.data(), values.size()));
  for (const std::size_t at : {0U, 63U, 99U}) {
    for (const float broken : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<bf16> some = values;
      some[at] = bf16(broken);
      EXPECT_FALSE(kernels::flash::all_finite(some.data(), some.size())) << at << " " << broken;
      EXPECT_TRUE(kernels::flash::all_finite(some.data(), at)) << at;
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::flash_pairs_kernel_test
