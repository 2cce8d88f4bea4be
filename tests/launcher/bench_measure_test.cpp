// What `tsprun bench` relies on: sizes and factors of its rows, data that shows any damage, statistics, a check that catches
// wrong results. The subjects here are one-rank fakes; real ranks run in the multi-process tests.
#include "launcher/bench/measure.h"
#include "launcher/bench/pattern.h"
#include "launcher/bench/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace tsprun::detail::bench::bench_measure_test {
namespace {

const Tick kNoTick = [] {};

TEST(BenchCases, SizesRoundDownToWhatTheOperationDividesAndEmptyRowsAreLeftOut) {
  const std::array kinds = {Kind::pingpong, Kind::all_gather, Kind::all_reduce, Kind::barrier};
  const std::array<std::uint64_t, 3> sizes = {3, 8, 1001};
  const std::vector<Case> cases = make_cases(kinds, sizes, DType::f32, 3);
  std::vector<std::pair<Kind, std::uint64_t>> rows;
  for (const Case& each : cases) rows.emplace_back(each.kind, each.bytes);
  const std::vector<std::pair<Kind, std::uint64_t>> expected = {{Kind::pingpong, 8},      {Kind::pingpong, 1000},
                                                                {Kind::all_gather, 996},  {Kind::all_reduce, 8},
                                                                {Kind::all_reduce, 1000}, {Kind::barrier, 0}};
  EXPECT_EQ(rows, expected);
}

TEST(BenchCases, SizesGrowByAFactorUpToTheLast) {
  using Sizes = std::vector<std::uint64_t>;
  EXPECT_EQ(growing_sizes(8, 64, 2), (Sizes{8, 16, 32, 64}));
  EXPECT_EQ(growing_sizes(8, 63, 2), (Sizes{8, 16, 32}));
  EXPECT_EQ(growing_sizes(5, 5, 10), (Sizes{5}));
  EXPECT_EQ(growing_sizes(6, 5, 2), Sizes{});
  EXPECT_EQ(growing_sizes(std::uint64_t{1} << 62, UINT64_MAX, 2), (Sizes{std::uint64_t{1} << 62, std::uint64_t{1} << 63}));
}

TEST(BenchCases, PingpongHasNoRowOnOneRank) {
  const std::array<std::uint64_t, 1> sizes = {64};
  EXPECT_TRUE(make_cases(std::array{Kind::pingpong}, sizes, DType::f32, 1).empty());
}

TEST(BenchCases, BuffersHoldGatheredOutputsAndUnscatteredInputs) {
  const Case gather{Kind::all_gather, DType::f64, 4, 4096};
  EXPECT_EQ(gather.input_bytes(), 1024U);
  EXPECT_EQ(gather.output_bytes(), 4096U);
  EXPECT_EQ(gather.count(), 128U);
  const Case scatter{Kind::reduce_scatter, DType::bf16, 4, 4096};
  EXPECT_EQ(scatter.input_bytes(), 4096U);
  EXPECT_EQ(scatter.output_bytes(), 1024U);
  EXPECT_EQ(scatter.count(), 512U);
  const std::array both = {gather, scatter};
  EXPECT_EQ(buffers_for(both).total(), 8192U);
}

// Of 1024 elements for each of four ranks: what a rank sends to another, that gets from it, too, and together it fits.
TEST(BenchCases, UnevenPartsAreSymmetricAndFit) {
  const Case which{Kind::all_to_all_v, DType::f32, 4, std::uint64_t{4} * 4 * 1024};
  EXPECT_EQ(which.parts_of(0), (std::vector<std::size_t>{0, 512, 1024, 1536}));
  EXPECT_EQ(which.parts_of(3), (std::vector<std::size_t>{1536, 0, 512, 1024}));
  for (int from = 0; from < 4; ++from) {
    std::size_t all = 0;
    for (int to = 0; to < 4; ++to) {
      EXPECT_EQ(which.part(from, to), which.part(to, from));
      all += which.part(from, to);
    }
    EXPECT_LE(all, which.elements());
  }
}

TEST(BenchCases, BusFactorsAreThoseOfNcclTests) {
  const auto factor = [](Kind kind) { return Case{kind, DType::f32, 8, 1024}.bus_factor(); };
  EXPECT_DOUBLE_EQ(factor(Kind::all_reduce), 1.75);
  EXPECT_DOUBLE_EQ(factor(Kind::all_gather), 0.875);
  EXPECT_DOUBLE_EQ(factor(Kind::reduce_scatter), 0.875);
  EXPECT_DOUBLE_EQ(factor(Kind::all_to_all), 0.875);
  EXPECT_DOUBLE_EQ(factor(Kind::all_to_all_v), 0.875);
  EXPECT_DOUBLE_EQ(factor(Kind::broadcast), 1);
  EXPECT_DOUBLE_EQ(factor(Kind::reduce), 1);
}

class BenchPattern : public testing::TestWithParam<DType> {};

TEST_P(BenchPattern, EveryDamagedElementCountsAndNoOther) {
  constexpr std::size_t kCount = 3000;  // several blocks, the last one short
  std::vector<std::byte> memory(kCount * size_of(GetParam()));
  const Buffer buffer(memory.data(), kCount, GetParam());
  fill(buffer, 7, 2, 100, kNoTick);
  EXPECT_EQ(count_wrong(buffer, 7, 2, 100, kNoTick), 0U);
  for (const std::size_t index : {std::size_t{0}, std::size_t{1023}, std::size_t{1024}, kCount - 1}) {
    memory[(index + 1) * size_of(GetParam()) - 1] ^= std::byte{0x40};
  }
  EXPECT_EQ(count_wrong(buffer, 7, 2, 100, kNoTick), 4U);
}

TEST_P(BenchPattern, OtherSeedsRanksAndPlacesHaveOtherValues) {
  constexpr std::size_t kCount = 4096;
  std::vector<std::byte> memory(kCount * size_of(GetParam()));
  const Buffer buffer(memory.data(), kCount, GetParam());
  fill(buffer, 7, 2, 0, kNoTick);
  EXPECT_GT(count_wrong(buffer, 8, 2, 0, kNoTick), kCount * 9 / 10);
  EXPECT_GT(count_wrong(buffer, 7, 3, 0, kNoTick), kCount * 9 / 10);
  EXPECT_GT(count_wrong(buffer, 7, 2, 1, kNoTick), kCount * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(DTypes, BenchPattern,
                         testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8, DType::u8, DType::i32,
                                         DType::i64));

TEST(BenchPatternSums, AreThePlainSumsOfWhatTheRanksPutIn) {
  constexpr std::size_t kCount = 2500;
  constexpr int kRanks = 9;
  std::vector<double> sums(kCount);
  std::vector<double> one(kCount);
  for (int rank = 0; rank < kRanks; ++rank) {
    fill(Buffer(std::span(one)), 3, rank, 40, kNoTick);
    for (std::size_t i = 0; i < kCount; ++i) sums[i] += one[i];
  }
  EXPECT_EQ(count_wrong_reductions(ConstBuffer(std::span(sums)), 3, kRanks, 40, kNoTick), 0U);
  sums[1234] += 1;
  EXPECT_EQ(count_wrong_reductions(ConstBuffer(std::span(sums)), 3, kRanks, 40, kNoTick), 1U);
}

TEST(BenchPatternSums, RoundOnceInBf16) {
  constexpr std::size_t kCount = 5000;
  constexpr int kRanks = 200;  // sums of more than eight bits
  std::vector<float> sums(kCount);
  std::vector<bf16> one(kCount);
  for (int rank = 0; rank < kRanks; ++rank) {
    fill(Buffer(std::span(one)), 3, rank, 0, kNoTick);
    for (std::size_t i = 0; i < kCount; ++i) sums[i] += static_cast<float>(one[i]);
  }
  std::vector<bf16> rounded(kCount);
  std::transform(sums.begin(), sums.end(), rounded.begin(), [](float sum) { return bf16(sum); });
  EXPECT_GT(*std::max_element(sums.begin(), sums.end()), 1024);
  EXPECT_EQ(count_wrong_reductions(ConstBuffer(std::span(rounded)), 3, kRanks, 0, kNoTick), 0U);
}

TEST(BenchPattern, IndicesBeyond32BitsHaveValuesOfTheirOwn) {
  std::vector<float> low(2048);
  std::vector<float> high(2048);
  const std::uint64_t far = std::uint64_t{1} << 32;
  fill(Buffer(std::span(low)), 1, 0, 0, kNoTick);
  fill(Buffer(std::span(high)), 1, 0, far - 1024, kNoTick);
  EXPECT_EQ(count_wrong(ConstBuffer(std::span(high)), 1, 0, far - 1024, kNoTick), 0U);
  const ConstBuffer crossed = ConstBuffer(std::span(high)).slice(1024, 1024);
  EXPECT_EQ(count_wrong(crossed, 1, 0, far, kNoTick), 0U);
  EXPECT_GT(count_wrong(crossed, 1, 0, 0, kNoTick), 900U);
}

TEST(BenchStatistics, MedianAndPercentileByNearestRank) {
  const std::array<double, 4> four = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(median(four), 3);
  EXPECT_DOUBLE_EQ(median(std::span(four).first(3)), 2);
  std::vector<double> hundred(100);
  for (std::size_t i = 0; i < hundred.size(); ++i) hundred[i] = static_cast<double>(i + 1);
  EXPECT_DOUBLE_EQ(percentile(hundred, 0.99), 99);
  EXPECT_DOUBLE_EQ(percentile(std::span(four).first(1), 0.99), 1);
}

/// One rank whose all_reduce is a copy that may be damaged.
class LonelySubject final : public Subject {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void barrier() override { ++barriers; }
  void send(std::span<const double>, int) override { FAIL() << "a lonely rank has no peers"; }
  void receive(std::span<double>, int) override { FAIL() << "a lonely rank has no peers"; }
  void run(const Case& which, std::uint64_t times) override {
    runs += times;
    for (std::uint64_t i = 0; i < times; ++i) std::memcpy(output_.data(), input_.data(), which.bytes);
    if (which.bytes > 8) output_[8] ^= damage;
  }
  std::span<std::byte> input() override { return input_; }
  std::span<std::byte> output() override { return output_; }

  std::byte damage{0};
  std::uint64_t barriers = 0;
  std::uint64_t runs = 0;

 private:
  std::vector<std::byte> input_ = std::vector<std::byte>(65536);
  std::vector<std::byte> output_ = std::vector<std::byte>(65536);
};

TEST(BenchCheck, CountsOneWrongElementInEachOfItsIterations) {
  LonelySubject subject;
  const Case which{Kind::all_reduce, DType::f32, 1, 65536};
  EXPECT_EQ(check(subject, which, 1), 0U);
  subject.damage = std::byte{1};
  EXPECT_EQ(check(subject, which, 1), static_cast<std::uint64_t>(kCheckIterations));
}

TEST(BenchMeasure, BatchesOfSmallOperationsAndExactlyTheIterationsAskedFor) {
  LonelySubject subject;
  const Case which{Kind::all_reduce, DType::f32, 1, 1024};
  const Timing timing = measure(subject, which, {.iterations = 7, .min_seconds = 0, .max_seconds = 1});
  EXPECT_EQ(timing.iterations, 7U);
  EXPECT_GT(timing.batch, 1U);
  EXPECT_GE(subject.runs, 7 * timing.batch);
  EXPECT_GE(subject.barriers, 7U);
  EXPECT_LE(timing.seconds_min, timing.seconds_p50);
  EXPECT_LE(timing.seconds_p50, timing.seconds_p99);
}

/// One rank whose all_gather and reduce_scatter are what they should be, in whatever place.
class PlainSubject final : public Subject {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void barrier() override {}
  void send(std::span<const double>, int) override {}
  void receive(std::span<double>, int) override {}
  void run(const Case& which, std::uint64_t times) override {
    const auto [in, out] = buffers_of(*this, which);
    overlapping = in.data == out.data;
    for (std::uint64_t i = 0; i < times && in.bytes() != 0; ++i) std::memmove(out.data, in.data, in.bytes());
  }
  std::span<std::byte> input() override { return input_; }
  std::span<std::byte> output() override { return output_; }

  bool overlapping = false;

 private:
  std::vector<std::byte> input_ = std::vector<std::byte>(4096);
  std::vector<std::byte> output_ = std::vector<std::byte>(4096);
};

TEST(BenchPlaces, InPlaceIsCheckedAndTimedOnOneBuffer) {
  PlainSubject subject;
  for (const Kind kind : {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::reduce}) {
    const Case which{kind, DType::f32, 1, 4096};
    EXPECT_EQ(check(subject, *out_of_place(which), 1), 0U) << name(kind);
    EXPECT_FALSE(subject.overlapping) << name(kind);
    EXPECT_EQ(check(subject, *in_place(which), 1), 0U) << name(kind);
    EXPECT_TRUE(subject.overlapping) << name(kind);
  }
  const Case broadcast{Kind::broadcast, DType::f32, 1, 4096};
  EXPECT_EQ(check(subject, *out_of_place(broadcast), 1), 0U);
  EXPECT_FALSE(subject.overlapping);
  for (const Kind kind : {Kind::all_to_all, Kind::all_to_all_v, Kind::pingpong, Kind::barrier})
    EXPECT_FALSE(in_place({kind, DType::f32, 2, 4096})) << name(kind);
}

/// The fourth of four ranks, of which nothing but its number counts.
class FourthSubject final : public Subject {
 public:
  int rank() const override { return 3; }
  int size() const override { return 4; }
  void barrier() override {}
  void send(std::span<const double>, int) override {}
  void receive(std::span<double>, int) override {}
  void run(const Case&, std::uint64_t) override {}
  std::span<std::byte> input() override { return input_; }
  std::span<std::byte> output() override { return output_; }

 private:
  std::vector<std::byte> input_ = std::vector<std::byte>(4096);
  std::vector<std::byte> output_ = std::vector<std::byte>(4096);
};

TEST(BenchPlaces, OwnPartsLieWhereTheRankIs) {
  FourthSubject subject;
  const RowBuffers gather = buffers_of(subject, *in_place({Kind::all_gather, DType::f32, 4, 4096}));
  EXPECT_EQ(gather.output.data, subject.output().data());
  EXPECT_EQ(gather.output.bytes(), 4096U);
  EXPECT_EQ(gather.input.data, subject.output().data() + 3072);
  EXPECT_EQ(gather.input.bytes(), 1024U);
  const RowBuffers scatter = buffers_of(subject, *in_place({Kind::reduce_scatter, DType::f32, 4, 4096}));
  EXPECT_EQ(scatter.input.data, subject.input().data());
  EXPECT_EQ(scatter.output.data, subject.input().data() + 3072);
  EXPECT_EQ(scatter.output.bytes(), 1024U);
}

Measurement outcome_of(double seconds, std::uint64_t wrong) {
  Measurement outcome;
  outcome.timing.seconds_p50 = seconds;
  outcome.timing.seconds_p99 = 2 * seconds;
  outcome.wrong = wrong;
  return outcome;
}

TEST(BenchTable, JsonRowHasTheReportsKeysAndNullWhereNothingWasChecked) {
  const Case which{Kind::all_gather, DType::f32, 4, 1 << 20};
  const nlohmann::ordered_json row =
      json_row(which, {.out_of_place = outcome_of(1e-3, kUnchecked), .in_place = outcome_of(5e-4, 3)}, "shm");
  for (const char* key :
       {"op", "ranks", "bytes", "dtype", "transport", "seconds_p50", "seconds_p99", "algbw_gbps", "busbw_gbps", "wrong"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_TRUE(row["wrong"].is_null());
  EXPECT_NEAR(row["algbw_gbps"].get<double>(), 1.048576, 1e-9);
  EXPECT_NEAR(row["busbw_gbps"].get<double>(), 0.786432, 1e-9);
  EXPECT_EQ(row["in_place"]["wrong"], 3);
  EXPECT_NEAR(row["in_place"]["algbw_gbps"].get<double>(), 2.097152, 1e-9);
  EXPECT_EQ(row["out_of_place"]["seconds_p50"], row["seconds_p50"]);
  // A broadcast's own figures are those in place, as ever.
  const Case broadcast{Kind::broadcast, DType::f32, 4, 1024};
  const nlohmann::ordered_json cast =
      json_row(broadcast, {.out_of_place = outcome_of(2, 0), .in_place = outcome_of(1, 0)}, "shm");
  EXPECT_EQ(cast["seconds_p50"], 1.0);
  EXPECT_EQ(cast["out_of_place"]["seconds_p50"], 2.0);
  EXPECT_TRUE(json_row({Kind::all_to_all, DType::f32, 4, 1024}, {.out_of_place = outcome_of(1, 0)}, "shm")["in_place"].is_null());
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// The columns of nccl-tests' README, as its readers find them: by number from the front, and busbw out of place by -6 from the
// end (SuperBench).
TEST(BenchTable, IsWhatReadersOfNcclTestsExpect) {
  std::vector<std::string> lines;
  ResultTable table([&](const std::string& line) { lines.push_back(line); });
  const Case first{Kind::all_reduce, DType::f32, 4, 1 << 20};
  const Case second{Kind::all_reduce, DType::f32, 4, 2 << 20};
  table.add(first, {.out_of_place = outcome_of(1e-3, 0), .in_place = outcome_of(5e-4, 0)}, "shm");
  table.add(second, {.out_of_place = outcome_of(1e-3, 0), .in_place = outcome_of(5e-4, 2)}, "shm");
  table.finish();
  ASSERT_EQ(lines.size(), 4U + 2 + 3 + 2 + 1);
  EXPECT_EQ(words_of(lines[1]), (std::vector<std::string>{"#", "out-of-place", "in-place"}));
  EXPECT_EQ(words_of(lines[2]), (std::vector<std::string>{"#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw",
                                                          "#wrong", "time", "algbw", "busbw", "#wrong"}));
  EXPECT_EQ(words_of(lines[3]),
            (std::vector<std::string>{"#", "(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)", "(us)", "(GB/s)", "(GB/s)"}));
  EXPECT_EQ(words_of(lines[4]), (std::vector<std::string>{"1048576", "262144", "float", "sum", "-1", "1000.00", "1.05", "1.57",
                                                          "0", "500.00", "2.10", "3.15", "0"}));
  const std::vector<std::string> row = words_of(lines[5]);
  ASSERT_EQ(row.size(), 13U);
  EXPECT_EQ(row[row.size() - 6], "3.15");
  EXPECT_EQ(row.back(), "2");
  EXPECT_EQ(lines[6], "# Out of bounds values : 2 FAILED");
  // (1.572864 + 3.145728 + 3.145728 + 6.291456) / 4
  EXPECT_EQ(lines[7], "# Avg bus bandwidth    : 3.53894");
  for (std::size_t i = 8; i < lines.size(); ++i) EXPECT_EQ(lines[i][0], '#') << lines[i];
  EXPECT_NE(lines[9].find("2000.00 us,    1000.00 us in place"), std::string::npos) << lines[9];
  // SuperBench takes what lies between the last lines that have these words.
  const auto last_with = [&](const std::string& words) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) found = lines[i].find(words) != std::string::npos ? i : found;
    return found;
  };
  EXPECT_EQ(last_with("out-of-place"), 1U);
  EXPECT_EQ(last_with("Out of bounds values"), 6U);
}

TEST(BenchTable, OnANarrowTerminalHasALineForEachForm) {
  for (const auto& [columns, row] :
       {std::pair(std::size_t{121}, std::vector<std::string>{"1048576", "in", "500.00", "2.10", "3.15", "2"}),
        {52, {"1048576", "in", "500.00", "2.10", "3.15", "2"}},
        {51, {"1048576", "in", "500.00", "3.15", "2"}},
        {40, {"1048576", "in", "500.00", "3.15", "2"}}}) {
    std::vector<std::string> lines;
    ResultTable table([&](const std::string& line) { lines.push_back(line); }, columns);
    table.add({Kind::all_reduce, DType::f32, 4, 1 << 20}, {.out_of_place = outcome_of(1e-3, 0), .in_place = outcome_of(5e-4, 2)},
              "shm");
    ASSERT_EQ(lines.size(), 5U);
    EXPECT_EQ(lines[0], "# all_reduce, float, sum");
    EXPECT_EQ(words_of(lines[3])[1], "out");
    EXPECT_EQ(words_of(lines[4]), row);
    for (const std::string& line : lines) EXPECT_LE(line.size(), columns) << line;
    EXPECT_EQ(lines[1].size(), lines[4].size()) << "heads stand over their figures";
  }
  std::vector<std::string> lines;
  ResultTable table([&](const std::string& line) { lines.push_back(line); }, 122);
  table.add({Kind::all_reduce, DType::f32, 4, 1 << 20}, {.out_of_place = outcome_of(1e-3, 0), .in_place = outcome_of(5e-4, 2)},
            "shm");
  EXPECT_EQ(lines.size(), 5U);
  EXPECT_EQ(words_of(lines[4]).size(), 13U);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 122U) << line;
}

TEST(BenchTable, EachOperationHasATableOfItsOwn) {
  std::vector<std::string> lines;
  ResultTable table([&](const std::string& line) { lines.push_back(line); });
  table.add({Kind::all_to_all, DType::bf16, 2, 64}, outcome_of(1, 0).timing, kUnchecked, "shm");
  table.add({Kind::barrier, DType::bf16, 2, 0}, outcome_of(1, 0).timing, 0, "shm");
  table.finish();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("# Avg bus"); }), 2);
  EXPECT_EQ(words_of(lines[4])[2], "bfloat16");
  EXPECT_EQ(words_of(lines[4]).back(), "N/A");
  EXPECT_EQ(lines[5], "# Out of bounds values : 0 OK (not checked)");
}

}  // namespace
}  // namespace tsprun::detail::bench::bench_measure_test
