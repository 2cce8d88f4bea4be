// Flash attention against the textbook's formula in f64, which holds all scores in memory.
#include "core/kernels/level.h"
#include "tests/core/flash_support.h"

namespace tsprun::detail::test::flash_kernel_test {
namespace {

using namespace flash;

constexpr kernels::Mask kFull = {};
kernels::Mask causal(std::size_t query_start, std::size_t key_start) {
  return kernels::Mask::from_positions(query_start, key_start);
}

TEST(FlashAttention, EqualsTheFormulaForOddShapes) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const kernels::Mask& mask : {kFull, causal(0, 0)}) {
      check({1, 1, 1, 1, 1, 1, mask, {}}, dtype);
      check({2, 3, 3, 2, 2, 4, mask, {}}, dtype);
      check({1, 37, 37, 3, 3, 20, mask, {}}, dtype);
      check({2, 130, 130, 2, 2, 64, mask, {}}, dtype);
      check({1, 300, 300, 1, 1, 33, mask, {}}, dtype);
    }
  }
}

TEST(FlashAttention, EqualsTheFormulaOverManyTiles) {
  check({1, 700, 700, 1, 1, 64, causal(0, 0), {}}, DType::f32);
  check({1, 520, 520, 1, 1, 128, causal(0, 0), {}}, DType::f64);
  check({1, 515, 1300, 1, 1, 16, kFull, {}}, DType::f32);
  check({1, 1, 1300, 2, 1, 64, causal(1299, 0), {.group = 2}}, DType::f32);
  check({1, 300, 1111, 1, 1, 16, causal(811, 0), {}}, DType::f64, 2);
}

TEST(FlashAttention, EqualsTheFormulaForOneQueryWhoseHeadsShareKeys) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    check({2, 1, 450, 6, 2, 64, kFull, {.group = 3}}, dtype, 2);
    check({1, 1, 70, 3, 2, 8, kFull, {.group = 3, .first_query = 2}}, dtype);
    check({1, 1, 70, 2, 3, 8, kFull, {.group = 1, .first_query = 7, .first_kv = 6}}, dtype);
    check({1, 1, 33, 4, 1, 16, kFull, {.group = 40, .first_query = 5}}, dtype);
    check({1, 1, 300, 7, 1, 31, kFull, {.group = 7}}, dtype);
    check({1, 1, 257, 2, 1, 200, kFull, {.group = 2}}, dtype);
  }
}

TEST(FlashAttention, EqualsTheFormulaWithLogSumExpsInTwoNumbers) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    check({2, 130, 130, 2, 1, 64, causal(0, 0), {.group = 2}}, dtype, 1, 2);
    check({1, 300, 300, 1, 1, 33, kFull, {}}, dtype, 2, 2);
    check({1, 200, 310, 2, 2, 16, causal(50, 80), {}}, dtype, 1, 2);  // the first 30 queries see nothing
    check({2, 1, 450, 6, 2, 64, kFull, {.group = 3}}, dtype, 2, 2);
    check({2, 5, 0, 2, 2, 8, kFull, {}}, dtype, 1, 2);
  }
}

TEST(FlashAttention, EqualsTheFormulaForEveryWidthOfHeads) {
  for (const std::size_t d : {2U, 8U, 31U, 80U, 96U, 200U, 256U}) {
    check({1, 70, 70, 2, 1, d, causal(0, 0), {.group = 2}}, DType::f32);
    check({1, 35, 50, 1, 1, d, kFull, {}}, DType::f64);
  }
}

TEST(FlashAttention, AlignsThePrefixMaskToTheBottomRight) {
  // A chunk's queries on all keys up to the chunk's end, chunk starts that no tile is aligned to.
  for (const std::size_t start : {1U, 5U, 127U, 128U, 300U}) {
    for (const std::size_t queries : {1U, 7U, 150U}) {
      check({1, queries, start + queries, 2, 1, 8, causal(start, 0), {.group = 2}}, DType::f64);
    }
  }
}

TEST(FlashAttention, MasksChunksOfARingByTheirPositions) {
  for (const auto& [query_start, key_start] :
       {std::pair<std::size_t, std::size_t>{100, 0}, {0, 100}, {50, 50}, {50, 80}, {80, 50}}) {
    check({1, 60, 45, 1, 1, 8, causal(query_start, key_start), {}}, DType::f64);
    check({1, 200, 310, 2, 2, 16, causal(query_start, key_start), {}}, DType::f32);
  }
}

TEST(FlashAttention, GivesZeroAndMinusInfinityToQueriesThatSeeNothing) {
  const Problem problem({1, 40, 40, 1, 1, 8, causal(0, 20), {}}, DType::f32);
  const Results results = run(problem);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(results.lse[i], -kInfinity);
    for (std::size_t c = 0; c < 8; ++c) {
      EXPECT_EQ(results.o[i * 8 + c], 0);
      EXPECT_EQ(results.dq[i * 8 + c], 0);
    }
  }
}

TEST(FlashAttention, AcceptsNoQueriesAndNoKeys) {
  check({1, 0, 5, 2, 2, 8, causal(0, 0), {}}, DType::f32);
  check({2, 5, 0, 2, 2, 8, kFull, {}}, DType::f64);
  check({0, 5, 5, 2, 2, 8, kFull, {}}, DType::f32);
}

TEST(FlashAttention, MapsQueryHeadsToTheirKvHeads) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    check({1, 50, 50, 8, 2, 8, causal(0, 0), {.group = 4}}, dtype);
    check({1, 50, 50, 6, 1, 8, causal(0, 0), {.group = 6}}, dtype);
    // Query heads 5…9 of groups of 3 read K/V heads 1…3; the view also holds head 4, which nobody reads.
    check({2, 50, 50, 5, 4, 8, causal(0, 0), {.group = 3, .first_query = 5, .first_kv = 1}}, dtype);
    check({1, 200, 200, 5, 4, 8, kFull, {.group = 3, .first_query = 5, .first_kv = 1}}, dtype, 3);
  }
}

TEST(FlashAttention, RefusesAViewWithoutTheKvHeadThatAQueryHeadReads) {
  const Problem problem({1, 4, 4, 4, 1, 8, kFull, {.group = 2}}, DType::f32);
  EXPECT_THROW(run(problem), std::invalid_argument);
  const Problem before({1, 4, 4, 2, 1, 8, kFull, {.group = 2, .first_query = 0, .first_kv = 1}}, DType::f32);
  EXPECT_THROW(run(before), std::invalid_argument);
}

TEST(FlashAttention, HasTheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    // One K/V head: threads share it in waves. Six: a head is a task.
    for (const std::size_t kv_heads : {1U, 6U}) {
      const Problem problem({1, 450, 600, 6, kv_heads, 32, causal(150, 0), {.group = 6 / kv_heads}}, dtype);
      const Results one = run(problem, 1);
      for (const std::size_t threads : {2U, 4U, 5U}) {
        const Results many = run(problem, threads);
        EXPECT_TRUE(one.o == many.o && one.lse == many.lse && one.dq == many.dq && one.dk == many.dk && one.dv == many.dv)
            << name(dtype) << ", " << threads << " threads, " << kv_heads << " K/V heads";
      }
    }
  }
}

TEST(FlashAttention, AddsGradientsOfSeveralChunks) {
  // Two chunks of queries on the same keys: together they are one call over both.
  const Problem whole({1, 90, 90, 2, 1, 8, causal(0, 0), {.group = 2}}, DType::f64);
  const Results expected = run(whole);
  Results results(whole);
  Bench bench;
  const auto call = [&](std::size_t first, std::size_t count, std::size_t keys, kernels::Write write) {
    kernels::Attention attention = whole.attention;
    attention.mask = causal(first, 0);
    const auto rows = [&](const auto& view) { return view.slice(1, first, count); };
    const auto prefix = [&](const auto& view) { return view.slice(1, 0, keys); };
    kernels::flash_backward(bench.on(), attention, rows(results.dq.view()), prefix(results.dk.view()), prefix(results.dv.view()),
                            rows(whole.d_o.view()), expected.lse.view().slice(2, first, count),
                            expected.delta.view().slice(2, first, count), rows(whole.q.view()), prefix(whole.k.view()),
                            prefix(whole.v.view()), write);
  };
  call(50, 40, 90, kernels::Write::replace);
  call(0, 50, 50, kernels::Write::add);
  EXPECT_LE(distance(results.dq, expected.dq.values()), 1e-14);
  EXPECT_LE(distance(results.dk, expected.dk.values()), 1e-14);
  EXPECT_LE(distance(results.dv, expected.dv.values()), 1e-14);
}

TEST(FlashAttention, ReadsHeadsThatAreSlicesOfAWiderTensor) {
  const Problem problem({2, 40, 40, 4, 4, 8, causal(0, 0), {}}, DType::f32);
  const Results whole = run(problem);
  // Heads 1 and 2 alone.
  Results part(problem);
  Bench bench;
  const auto heads = [](const auto& view) { return view.slice(2, 1, 2); };
  kernels::flash_forward(bench.on(), problem.attention, heads(part.o.view()), part.lse.view().slice(1, 1, 2),
                         heads(problem.q.view()), heads(problem.k.view()), heads(problem.v.view()));
  for (std::size_t i = 0; i < whole.o.count(); ++i) {
    const std::size_t head = i / 8 % 4;
    EXPECT_EQ(part.o[i], head == 1 || head == 2 ? whole.o[i] : 0);
  }
}

TEST(FlashAttention, StoresTheOutputOfBf16OperandsInF32) {
  const Problem problem({1, 40, 40, 2, 2, 16, causal(0, 0), {}}, DType::bf16);
  Array o(DType::f32, {1, 40, 2, 16});
  Array lse(DType::f32, {1, 2, 40});
  Bench bench;
  kernels::flash_forward(bench.on(), problem.attention, o.view(), lse.view(), problem.q.view(), problem.k.view(),
                         problem.v.view());
  // In bf16 units, probabilities are rounded to bf16's 8 significant bits.
  const double rounding = kernels::level() >= kernels::Level::avx512_bf16 ? std::ldexp(1.0, -8) : 2e-6;
  EXPECT_LE(distance(o, naive(problem).o), rounding);
}

TEST(FlashAttention, SurvivesScoresFarFromZero) {
  Problem problem({1, 30, 30, 1, 1, 8, causal(0, 0), {}}, DType::f32);
  for (std::size_t i = 0; i < problem.q.count(); ++i) problem.q.set(i, 100 * problem.q[i]);
  const Results results = run(problem);
  const Expected expected = naive(problem);
  EXPECT_LE(distance(results.o, expected.o), 1e-4);
  EXPECT_LE(distance(results.lse, expected.lse), 1e-6);
}

TEST(FlashAttention, LetsNansThrough) {
  // A NaN in key 20 reaches all queries that see it, and only those.
  for (const DType dtype : {DType::f64, DType::f32}) {
    Problem problem({1, 40, 40, 1, 1, 8, causal(0, 0), {}}, dtype);
    problem.k.set(20 * 8 + 3, std::nan(""));
    const Results results = run(problem);
    for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(results.o[i * 8]), i >= 20) << "query " << i;
  }
}

TEST(FlashAttention, TicksWhileItWorks) {
  const Problem problem({1, 1200, 1200, 1, 1, 32, causal(0, 0), {}}, DType::f32);
  Results results(problem);
  Bench bench;
  int ticks = 0;
  const auto count = [&] { ++ticks; };
  kernels::Compute on = bench.on();
  on.tick = count;
  kernels::flash_forward(on, problem.attention, results.o.view(), results.lse.view(), problem.q.view(), problem.k.view(),
                         problem.v.view());
  EXPECT_GE(ticks, 4);
  ticks = 0;
  kernels::flash_backward(on, problem.attention, results.dq.view(), results.dk.view(), results.dv.view(), problem.d_o.view(),
                          results.lse.view(), results.delta.view(), problem.q.view(), problem.k.view(), problem.v.view());
  EXPECT_GE(ticks, 15);
}

TEST(MergeAttention, JoinsDisjointSetsOfKeys) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Problem problem({2, 9, 30, 3, 3, 8, kFull, {}}, dtype);
    const Expected expected = naive(problem);
    Bench bench;
    std::vector<Results> parts;
    std::vector<ConstTensor> part_o;
    std::vector<ConstTensor> part_lse;
    const std::size_t starts[] = {0, 11, 11, 29, 30};  // the second part is empty
    for (std::size_t p = 0; p < 4; ++p) parts.emplace_back(problem);
    for (std::size_t p = 0; p < 4; ++p) {
      const auto keys = [&](const ConstTensor& view) { return view.slice(1, starts[p], starts[p + 1] - starts[p]); };
      kernels::flash_forward(bench.on(), problem.attention, parts[p].o.view(), parts[p].lse.view(), problem.q.view(),
                             keys(problem.k.view()), keys(problem.v.view()));
      part_o.push_back(parts[p].o.view());
      part_lse.push_back(parts[p].lse.view());
    }
    Results merged(problem);
    kernels::merge_attention(bench.on(), problem.attention.scale, merged.o.view(), merged.lse.view(), part_o, part_lse);
    EXPECT_LE(distance(merged.o, expected.o), tolerance(dtype));
    EXPECT_LE(distance(merged.lse, expected.lse), tolerance(dtype));
    // In place, one part after another, as a ring does it.
    Results& sum = parts[0];
    for (std::size_t p = 1; p < 4; ++p) {
      const ConstTensor two_o[] = {sum.o.view(), part_o[p]};
      const ConstTensor two_lse[] = {sum.lse.view(), part_lse[p]};
      kernels::merge_attention(bench.on(), problem.attention.scale, sum.o.view(), sum.lse.view(), two_o, two_lse);
    }
    EXPECT_LE(distance(sum.o, expected.o), 2 * tolerance(dtype));
  }
}

TEST(MergeAttention, WeighsPartsByTheirSumsHoweverLargeTheScores) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const double maximum : {0.0, 320000.0, -1e30}) {
      std::vector<Array> part_lse(3, Array(dtype, {1, 1, 1, 2}));
      std::vector<Array> o;
      for (std::size_t p = 0; p < 3; ++p) {
        o.push_back(Array::normal(dtype, {1, 1, 1, 4}, static_cast<unsigned>(p)));
        part_lse[p].set(0, maximum);
        part_lse[p].set(1, std::log(static_cast<double>(p + 1)));  // of p + 1 equal scores
      }
      Array merged(dtype, {1, 1, 1, 4});
      Array lse(dtype, {1, 1, 1, 2});
      const ConstTensor parts[] = {o[0].view(), o[1].view(), o[2].view()};
      const ConstTensor lses[] = {part_lse[0].view(), part_lse[1].view(), part_lse[2].view()};
      kernels::merge_attention({}, 0.35, merged.view(), lse.view(), parts, lses);
      std::vector<double> expected(4);
      for (std::size_t c = 0; c < 4; ++c) expected[c] = (o[0][c] + 2 * o[1][c] + 3 * o[2][c]) / 6;
      EXPECT_LE(distance(merged, expected), tolerance(dtype)) << maximum;
      EXPECT_EQ(lse[0], part_lse[0][0]);
      EXPECT_NEAR(lse[1], std::log(6.0), 1e-6);
    }
  }
}

TEST(LogSumExp, IsRoundedToOneNumberOrToldToBeLost) {
  constexpr double kScale = 0.35;
  for (const DType dtype : {DType::f64, DType::f32}) {
    Array two(dtype, {1, 1, 4, 2});
    const double maxima[] = {3, -kInfinity, 1e30, std::nan("")};
    for (std::size_t i = 0; i < 4; ++i) {
      two.set(2 * i, maxima[i]);
      two.set(2 * i + 1, i == 1 ? 0 : std::log(2.0));
    }
    Array one(dtype, {1, 1, 4});
    kernels::round_lse(kScale, one.view(), two.view());
    EXPECT_NEAR(one[0], 3 + std::log(2.0) / kScale, 1e-6);
    EXPECT_EQ(one[1], -kInfinity);
    EXPECT_TRUE(std::isnan(one[2]) && std::isnan(one[3]));
    // It counts as lost only where the output is finite: the last query's isn't.
    Array o(dtype, {1, 4, 1, 3});
    o.set(3 * 3 + 1, std::nan(""));
    EXPECT_TRUE(kernels::has_lost_lse(one.view(), o.view()));
    EXPECT_FALSE(kernels::has_lost_lse(one.view().slice(2, 0, 2), o.view().slice(1, 0, 2)));
    EXPECT_FALSE(kernels::has_lost_lse(one.view().slice(2, 3, 1), o.view().slice(1, 3, 1)));
  }
}

TEST(MergeAttention, OfNothingSeenIsZeroAndMinusInfinity) {
  Array o = Array::normal(DType::f32, {1, 2, 1, 4}, 1);
  Array lse(DType::f32, {1, 1, 2});
  lse.set(0, -kInfinity);
  lse.set(1, -kInfinity);
  const Array nan_o = [] {
    Array array(DType::f32, {1, 2, 1, 4});
    for (std::size_t i = 0; i < 8; ++i) array.set(i, std::nan(""));
    return array;
  }();
  Array merged(DType::f32, {1, 2, 1, 4});
  Array merged_lse(DType::f32, {1, 1, 2});
  const ConstTensor part_o[] = {o.view(), nan_o.view()};
  const ConstTensor part_lse[] = {lse.view(), lse.view()};
  kernels::merge_attention({}, 1, merged.view(), merged_lse.view(), part_o, part_lse);
  EXPECT_TRUE(merged == Array(DType::f32, {1, 2, 1, 4}));
  EXPECT_EQ(merged_lse[0], -kInfinity);
}

TEST(MergeAttention, LetsNansThrough) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const double other : {-kInfinity, 1.5, std::nan("")}) {
      Array o = Array::normal(dtype, {1, 1, 1, 4}, 1);
      Array broken(dtype, {1, 1, 1});
      broken.set(0, std::nan(""));
      Array second(dtype, {1, 1, 1});
      second.set(0, other);
      for (const bool broken_first : {true, false}) {
        const ConstTensor part_o[] = {o.view(), o.view()};
        const ConstTensor part_lse[] = {broken_first ? broken.view() : second.view(),
                                        broken_first ? second.view() : broken.view()};
        Array merged(dtype, {1, 1, 1, 4});
        Array merged_lse(dtype, {1, 1, 1});
        kernels::merge_attention({}, 1, merged.view(), merged_lse.view(), part_o, part_lse);
        EXPECT_TRUE(std::isnan(merged[0])) << "beside " << other;
        EXPECT_TRUE(std::isnan(merged_lse[0])) << "beside " << other;
      }
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::flash_kernel_test
