// Sliding windows and soft caps of scores in flash attention, against the textbook's formula in f64 and finite differences: masks
// by positions, what is hidden, and the work that a window saves.
#include "core/kernels/level.h"
#include "tests/core/flash_support.h"

namespace tsprun::detail::test::flash_window_kernel_test {
namespace {

using namespace flash;

kernels::Mask window(std::size_t size, std::size_t query_start = 0, std::size_t key_start = 0) {
  return kernels::Mask::from_positions(query_start, key_start, size);
}

TEST(FlashWindow, EqualsTheFormula) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t size : {1U, 2U, 7U, 48U, 100U, 191U, 250U, 1000U}) {
      check({1, 1, 1, 1, 1, 4, window(size), {}}, dtype);
      check({2, 37, 37, 2, 1, 20, window(size), {.group = 2}}, dtype);
      check({1, 300, 300, 1, 1, 33, window(size), {}}, dtype, 2);
    }
  }
}

TEST(FlashWindow, EqualsTheFormulaOverManyTiles) {
  for (const std::size_t size : {1U, 90U, 192U, 577U, 700U}) {
    check({1, 1300, 1300, 1, 1, 8, window(size), {}}, DType::f64);
    check({1, 1300, 1300, 2, 1, 8, window(size), {.group = 2}}, DType::f32, 3);
  }
}

TEST(FlashWindow, IsThatOfPositionsWhereverChunksBegin) {
  // Chunks of a prefix, of a ring, and some whose queries see none of the keys: too early, or too late.
  for (const auto& [query_start, key_start] :
       {std::pair<std::size_t, std::size_t>{250, 0}, {100, 0}, {50, 80}, {0, 100}, {0, 300}, {900, 0}, {45, 7}}) {
    for (const std::size_t size : {1U, 5U, 60U, 400U}) {
      check({1, 60, 45, 1, 1, 8, window(size, query_start, key_start), {}}, DType::f64, 1, 2);
      check({1, 200, 310, 2, 2, 16, window(size, query_start, key_start), {}}, DType::f32);
      check({1, 1, 310, 2, 1, 16, window(size, query_start, key_start), {.group = 2}}, DType::bf16);
    }
  }
}

TEST(FlashWindow, DropsByPositions) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 77}, .first_sequence = 3, .first_head = 5};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    check({2, 300, 300, 2, 1, 8, window(101), {.group = 2}, dropout}, dtype);
}

TEST(FlashWindow, ThatHidesNothingChangesNoBit) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t kv_heads : {1U, 4U}) {
      Problem problem({1, 700, 700, 4, kv_heads, 32, kernels::Mask::from_positions(0, 0), {.group = 4 / kv_heads}}, dtype);
      const Results without = run(problem, 2);
      problem.attention.mask.window = 700;
      const Results with = run(problem, 2);
      EXPECT_TRUE(with.o == without.o && with.lse == without.lse && with.dq == without.dq && with.dk == without.dk &&
                  with.dv == without.dv)
          << name(dtype);
    }
  }
}

/// Ranks have no others. (Where bf16 is multiplied in pairs of keys, pairs begin with the first key of the view.)
TEST(FlashWindow, OfTheKeysThatAreSeenAloneHasTheSameBits) {
  constexpr std::size_t kHeadDim = 24;
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const std::size_t size : {1U, 60U, 333U}) {
      const Problem all({1, 250, 900, 2, 1, kHeadDim, window(size, 650), {.group = 2}}, dtype);
      const std::size_t first = 651 - size;
      Problem seen({1, 250, 900 - first, 2, 1, kHeadDim, window(size, 650, first), {.group = 2}}, dtype);
      for (std::size_t i = 0; i < seen.k.count(); ++i) {
        seen.k.set(i, all.k[first * kHeadDim + i]);
        seen.v.set(i, all.v[first * kHeadDim + i]);
      }
      const Results expected = run(all);
      const Results found = run(seen);
      EXPECT_TRUE(found.o == expected.o && found.lse == expected.lse && found.dq == expected.dq) << name(dtype) << ", " << size;
      for (std::size_t i = 0; i < found.dk.count(); ++i) {
        ASSERT_EQ(found.dk[i], expected.dk[first * kHeadDim + i]) << name(dtype) << ", " << size;
        ASSERT_EQ(found.dv[i], expected.dv[first * kHeadDim + i]) << name(dtype) << ", " << size;
      }
    }
  }
}

TEST(FlashWindow, HasTheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t kv_heads : {1U, 6U}) {
      const Problem problem({1, 1000, 1200, 6, kv_heads, 16, window(133, 200), {.group = 6 / kv_heads}}, dtype);
      const Results one = run(problem, 1);
      for (const std::size_t threads : {2U, 5U}) {
        const Results many = run(problem, threads);
        EXPECT_TRUE(one.o == many.o && one.lse == many.lse && one.dq == many.dq && one.dk == many.dk && one.dv == many.dv)
            << name(dtype) << ", " << threads << " threads, " << kv_heads << " K/V heads";
      }
    }
  }
}

/// A NaN or an infinity of a key reaches the queries in whose window the key is, and of a query the keys in its window.
TEST(FlashWindow, HidesWhatIsNotFinite) {
  constexpr std::size_t kTokens = 700;
  constexpr std::size_t kHeadDim = 17;
  constexpr std::size_t kWindow = 101;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Problem whole({1, kTokens, kTokens, 1, 1, kHeadDim, window(kWindow), {}}, dtype);
    const Results expected = run(whole);
    for (const double broken : {std::nan(""), kInfinity}) {
      // 95: in the queries' panel from 192 on, some see it and some see it no more, and all see what follows in its tile of keys.
      for (const std::size_t token : {1U, 48U, 95U, 193U, 576U, 699U}) {
        for (Array Problem::*operand : {&Problem::k, &Problem::v, &Problem::q, &Problem::d_o}) {
          Problem problem = whole;
          for (std::size_t c = 0; c < kHeadDim; ++c) (problem.*operand).set(token * kHeadDim + c, broken);
          const Results results = run(problem);
          const bool of_keys = operand == &Problem::k || operand == &Problem::v;
          const std::string where = std::string(name(dtype)) + (of_keys ? " key " : " query ") + std::to_string(token);
          const auto expect_same = [&](const Array& actual, const Array& wanted, std::size_t from, std::size_t end,
                                       const char* what) {
            for (std::size_t i = from * kHeadDim; i < std::min(end, kTokens) * kHeadDim; ++i) {
              ASSERT_EQ(actual[i], wanted[i]) << where << ", " << what << " of token " << i / kHeadDim;
            }
          };
          for (const auto& [from, end] :
               {std::pair<std::size_t, std::size_t>{0, token}, {token + (of_keys ? kWindow : 1), kTokens}}) {
            expect_same(results.o, expected.o, from, end, "o");
            expect_same(results.dq, expected.dq, from, end, "dq");
          }
          const std::size_t earliest = of_keys ? 0 : token - std::min(token, kWindow - 1);
          if (!of_keys) {
            expect_same(results.dk, expected.dk, 0, earliest, "dk");
            expect_same(results.dv, expected.dv, 0, earliest, "dv");
            expect_same(results.dk, expected.dk, token + 1, kTokens, "dk");
            expect_same(results.dv, expected.dv, token + 1, kTokens, "dv");
          }
          EXPECT_TRUE(std::isnan(results.dq[token * kHeadDim])) << where;
        }
      }
    }
  }
}

/// Returns the ticks of the forward and of the backward pass, which are at least one for each tile that was computed.
std::pair<int, int> ticks_of(std::size_t size) {
  const Problem problem({1, 6000, 6000, 1, 1, 8, window(size), {}}, DType::f32);
  Results results(problem);
  Bench bench;
  int ticks = 0;
  const auto count = [&] { ++ticks; };
  kernels::Compute on = bench.on();
  on.tick = count;
  kernels::flash_forward(on, problem.attention, results.o.view(), results.lse.view(), problem.q.view(), problem.k.view(),
                         problem.v.view());
  const int forward = std::exchange(ticks, 0);
  kernels::flash_backward(on, problem.attention, results.dq.view(), results.dk.view(), results.dv.view(), problem.d_o.view(),
                          results.lse.view(), results.delta.view(), problem.q.view(), problem.k.view(), problem.v.view());
  return {forward, ticks};
}

TEST(FlashWindow, SkipsTilesOutsideOfIt) {
  const auto [all_forward, all_backward] = ticks_of(0);
  const auto [forward, backward] = ticks_of(100);
  // A block of queries sees its own tiles of keys and one or two before, of 6000 tokens; a tile of keys is seen by its own tiles
  // of queries and two after.
  EXPECT_LT(6 * forward, all_forward);
  EXPECT_LT(4 * backward, all_backward);
}

TEST(FlashWindow, NeedsACausalMask) {
  Problem problem({1, 4, 4, 1, 1, 8, kernels::Mask::none(), {}}, DType::f32);
  problem.attention.mask.window = 2;
  EXPECT_THROW(run(problem), std::invalid_argument);
}

TEST(FlashWindow, MergesWithWhatOtherKeysGave) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const double cap : {0.0, 0.7}) {
      const Problem problem({2, 40, 90, 2, 1, 8, window(33, 50), {.group = 2}, {}, cap}, dtype);
      const Expected expected = naive(problem);
      Bench bench;
      std::vector<Results> parts;
      std::vector<ConstTensor> part_o;
      std::vector<ConstTensor> part_lse;
      const std::size_t starts[] = {0, 11, 37, 60, 90};  // no query sees the first keys
      for (std::size_t p = 0; p < 4; ++p) parts.emplace_back(problem, 2);
      for (std::size_t p = 0; p < 4; ++p) {
        const auto keys = [&](const ConstTensor& view) { return view.slice(1, starts[p], starts[p + 1] - starts[p]); };
        kernels::Attention attention = problem.attention;
        attention.mask = window(33, 50, starts[p]);
        kernels::flash_forward(bench.on(), attention, parts[p].o.view(), parts[p].lse.view(), problem.q.view(),
                               keys(problem.k.view()), keys(problem.v.view()));
        part_o.push_back(parts[p].o.view());
        part_lse.push_back(parts[p].lse.view());
      }
      Results merged(problem);
      kernels::merge_attention(bench.on(), problem.attention.scale, merged.o.view(), merged.lse.view(), part_o, part_lse);
      EXPECT_LE(distance(merged.o, expected.o), tolerance(dtype));
      EXPECT_LE(distance(merged.lse, expected.lse), tolerance(dtype));
    }
  }
}

TEST(FlashCap, EqualsTheFormula) {
  const kernels::AttentionDropout dropout{.draw = {0.3, 77}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const double cap : {0.3, 2.0, 50.0}) {
      for (const kernels::Mask& mask : {kernels::Mask::none(), window(0), window(90)}) {
        check({2, 37, 37, 2, 1, 20, mask, {.group = 2}, {}, cap}, dtype);
        check({1, 300, 300, 1, 1, 33, mask, {}, {}, cap}, dtype, 2, 2);
        check({1, 130, 130, 1, 1, 8, mask, {}, dropout, cap}, dtype);
      }
      check({2, 1, 450, 6, 2, 64, kernels::Mask::none(), {.group = 3}, {}, cap}, dtype);  // as in decoding
      check({2, 1, 450, 6, 2, 64, kernels::Mask::none(), {.group = 3}, {}, cap}, dtype, 1, 2);
    }
  }
}

TEST(FlashCap, GradientsEqualFiniteDifferences) {
  for (const double cap : {0.0, 0.5, 3.0}) {
    Problem problem({1, 11, 11, 2, 1, 6, window(4), {.group = 2}, {}, cap}, DType::f64);
    const Results results = run(problem);
    Bench bench;
    const auto loss = [&] {
      Results forward(problem);
      kernels::flash_forward(bench.on(), problem.attention, forward.o.view(), forward.lse.view(), problem.q.view(),
                             problem.k.view(), problem.v.view());
      double sum = 0;
      for (std::size_t i = 0; i < forward.o.count(); ++i) sum += forward.o[i] * problem.d_o[i];
      return sum;
    };
    EXPECT_LE(distance(results.dq, finite_differences(problem.q, loss)), 1e-8) << cap;
    EXPECT_LE(distance(results.dk, finite_differences(problem.k, loss)), 1e-8) << cap;
    EXPECT_LE(distance(results.dv, finite_differences(problem.v, loss)), 1e-8) << cap;
  }
}

TEST(FlashCap, HoldsScoresHoweverLargeAndTellsOverflow) {
  for (const std::size_t queries : {1U, 60U}) {  // one query: attend_single()
    Problem problem({1, queries, 60, 1, 1, 24, kernels::Mask::none(), {}, {}, 5.0}, DType::f32);
    for (std::size_t i = 0; i < problem.k.count(); ++i) problem.k.set(i, 1e20 * problem.k[i]);
    const Results results = run(problem);
    EXPECT_LE(distance(results.o, naive(problem).o), 1e-5);
    EXPECT_LE(distance(results.lse, naive(problem).lse), 1e-6);
    for (Array* operand : {&problem.q, &problem.k}) {
      for (std::size_t i = 0; i < operand->count(); ++i) operand->set(i, 1e25);
    }
    const Results overflown = run(problem);
    for (std::size_t i = 0; i < queries; ++i)
      EXPECT_TRUE(std::isnan(overflown.o[i * 24]) && std::isnan(overflown.lse[i]) && std::isnan(overflown.dq[i * 24])) << i;
  }
}

TEST(FlashCap, IsRefusedIfItIsNoNumberAboveZero) {
  for (const double cap : {-1.0, kInfinity, std::nan("")}) {
    const Problem problem({1, 4, 4, 1, 1, 8, kernels::Mask::none(), {}, {}, cap}, DType::f32);
    EXPECT_THROW(run(problem), std::invalid_argument) << cap;
  }
}

}  // namespace
}  // namespace tsprun::detail::test::flash_window_kernel_test
