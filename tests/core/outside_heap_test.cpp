// Large buffers that don't lie in the rank's heap: operations on them need room there for a part, and give the bits that a plain
// loop gives in the canonical order.
#include "core/collectives/choice.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test::outside_heap_test {
namespace {

constexpr std::size_t kCount = 3 * kRoundBytes / sizeof(double) + 4321;  // more than three rounds, of uneven chunks
/// Room for a round, its result included, and for staging.
constexpr std::uint64_t kRoom = kRoundBytes + (std::uint64_t{2} << 20);

/// Returns element i of rank r's input: values whose sum depends on the order of its terms.
double value(int rank, std::size_t i) {
  std::uint64_t x = i * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(rank) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 29) * 0x94d049bb133111eb;
  return static_cast<double>(static_cast<std::int64_t>(x ^ x >> 32)) * 1e-19;
}

std::vector<double> input(int rank, std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(rank, i);
  return values;
}

/// Returns the sum of the ranks' elements i in the order first, first + 1, … (cyclic).
double sum_from(int first, int ranks, std::size_t i) {
  double sum = value(first % ranks, i);
  for (int term = 1; term < ranks; ++term) sum += value((first + term) % ranks, i);
  return sum;
}

/// Returns the first element of chunk c of n.
std::size_t chunk_begin(std::size_t c, std::size_t n, std::size_t count) { return c * (count / n) + std::min(c, count % n); }

void run(int ranks, const RankBody& body, int nodes = 1) {
  run_ranks(ranks,
            [&](Context& context) {
              body(context);
              EXPECT_LE(context.memory_peaks().total, kRoom) << "rank " << context.rank();
            },
            {.nodes = nodes});
}

void expect_sums(const std::vector<double>& sums, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::size_t wrong = 0;
  for (int c = 0; c < ranks; ++c) {
    const auto chunk = static_cast<std::size_t>(c);
    for (std::size_t i = chunk_begin(chunk, n, kCount); i < chunk_begin(chunk + 1, n, kCount); ++i)
      wrong += static_cast<std::size_t>(sums[i] != sum_from(c + 1, ranks, i));
  }
  EXPECT_EQ(wrong, 0U);
}

TEST(OutsideTheHeap, AllReduceTakesARoundAndGivesTheCanonicalBits) {
  for (const int ranks : {2, 3}) {
    run(ranks, [&](Context& context) {
      std::vector<double> values = input(context.rank(), kCount);
      context.world().all_reduce(std::span(values), Reduction::sum);  // in place
      expect_sums(values, ranks);
      const std::vector<double> again = input(context.rank(), kCount);
      std::ranges::fill(values, -1);
      Work work = context.world().post_all_reduce(Buffer(const_cast<double*>(again.data()), kCount, DType::f64),
                                                  Buffer(std::span(values)), Reduction::sum);
      work.wait();
      expect_sums(values, ranks);
    });
  }
}

TEST(OutsideTheHeap, ReduceScatterAndAllGatherTakeARound) {
  constexpr int kRanks = 3;
  constexpr std::size_t kPart = kCount / kRanks;
  run(kRanks, [&](Context& context) {
    const std::vector<double> values = input(context.rank(), kPart * kRanks);
    std::vector<double> part(kPart);
    context.world().reduce_scatter(std::span(values), std::span(part), Reduction::sum);
    const std::size_t begin = static_cast<std::size_t>(context.rank()) * kPart;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kPart; ++i)
      wrong += static_cast<std::size_t>(part[i] != sum_from(context.rank() + 1, kRanks, begin + i));
    EXPECT_EQ(wrong, 0U);
    std::vector<double> whole(kPart * kRanks);
    context.world().all_gather(std::span<const double>(part), std::span(whole));
    for (std::size_t i = 0; i < whole.size(); ++i)
      wrong += static_cast<std::size_t>(whole[i] != sum_from(static_cast<int>(i / kPart) + 1, kRanks, i));
    EXPECT_EQ(wrong, 0U);
  });
}

TEST(OutsideTheHeap, ChunksOfUnlikeSizesTakeARound) {
  constexpr int kRanks = 3;
  const std::vector<std::size_t> counts = {kCount - 77, 0, 77};
  run(kRanks, [&](Context& context) {
    const auto me = static_cast<std::size_t>(context.rank());
    const std::vector<double> own = input(context.rank(), counts[me]);
    std::vector<double> whole(kCount);
    const auto send = ConstBuffer(own.data(), own.size(), DType::f64);
    context.world().all_gather_v(send, Buffer(std::span(whole)), counts);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kCount; ++i)
      wrong += static_cast<std::size_t>(whole[i] != (i < counts[0] ? value(0, i) : value(2, i - counts[0])));
    EXPECT_EQ(wrong, 0U);
    std::ranges::fill(whole, -1);
    context.world().gather_v(send, context.rank() == 1 ? Buffer(std::span(whole)) : Buffer(), counts, 1);
    if (context.rank() != 1) return;
    for (std::size_t i = 0; i < kCount; ++i)
      wrong += static_cast<std::size_t>(whole[i] != (i < counts[0] ? value(0, i) : value(2, i - counts[0])));
    EXPECT_EQ(wrong, 0U);
  });
}

TEST(OutsideTheHeap, RootedOperationsTakeARound) {
  constexpr int kRanks = 3;
  constexpr std::size_t kPart = kCount / kRanks;
  run(kRanks, [&](Context& context) {
    std::size_t wrong = 0;
    std::vector<double> values = input(context.rank(), kCount);
    std::vector<double> sums(context.rank() == 1 ? kCount : 0);
    context.world().reduce(ConstBuffer(values.data(), kCount, DType::f64), Buffer(std::span(sums)), Reduction::sum, 1);
    for (std::size_t i = 0; i < sums.size(); ++i) wrong += static_cast<std::size_t>(sums[i] != sum_from(2, kRanks, i));
    context.world().broadcast(std::span(values), 2);
    for (std::size_t i = 0; i < kCount; ++i) wrong += static_cast<std::size_t>(values[i] != value(2, i));
    std::vector<double> part(kPart);
    context.world().scatter(ConstBuffer(values.data(), kPart * kRanks, DType::f64), Buffer(std::span(part)), 0);
    for (std::size_t i = 0; i < kPart; ++i)
      wrong += static_cast<std::size_t>(part[i] != value(2, static_cast<std::size_t>(context.rank()) * kPart + i));
    EXPECT_EQ(wrong, 0U);
  });
}

TEST(OutsideTheHeap, AllToAllTakesARound) {
  constexpr int kRanks = 3;
  constexpr std::size_t kPart = kCount / kRanks;
  run(kRanks, [&](Context& context) {
    const std::vector<double> mine = input(context.rank(), kPart * kRanks);
    std::vector<double> theirs(kPart * kRanks);
    context.world().all_to_all(std::span(mine), std::span(theirs));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      wrong += static_cast<std::size_t>(
          theirs[i] != value(static_cast<int>(i / kPart), static_cast<std::size_t>(context.rank()) * kPart + i % kPart));
    EXPECT_EQ(wrong, 0U);
  });
}

/// Over shared memory and over tcp, in order, with tags, and both ways at once.
TEST(OutsideTheHeap, MessagesTakeSomePieces) {
  for (const int nodes : {1, 2}) {
    run(
        2,
        [&](Context& context) {
          const int other = 1 - context.rank();
          const std::vector<double> mine = input(context.rank(), kCount);
          std::vector<double> theirs(kCount);
          const auto check = [&](const char* what) {
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < kCount; ++i) wrong += static_cast<std::size_t>(theirs[i] != value(other, i));
            EXPECT_EQ(wrong, 0U) << what;
            std::ranges::fill(theirs, -1);
          };
          context.world().send_recv(std::span(mine), other, std::span(theirs), other);
          check("send_recv");
          for (const std::int32_t tag : {-1, 7}) {
            CallOptions options;
            if (tag >= 0) options.tag = tag;
            if (context.rank() == 0) context.world().send(std::span(mine), other, options);
            context.world().recv(std::span(theirs), other, options);
            if (context.rank() == 1) context.world().send(std::span(mine), other, options);
            check(tag < 0 ? "send" : "tagged");
          }
        },
        nodes);
  }
}

/// Over tcp nothing is copied into the heap at all.
TEST(OutsideTheHeap, OverTcpBuffersAreSentFromWhereTheyLie) {
  run_ranks(2,
            [](Context& context) {
              std::vector<double> values = input(context.rank(), kCount);
              context.world().broadcast(std::span(values), 1);
              std::size_t wrong = 0;
              for (std::size_t i = 0; i < kCount; ++i) wrong += static_cast<std::size_t>(values[i] != value(1, i));
              EXPECT_EQ(wrong, 0U);
              EXPECT_LE(context.memory_peaks().total, std::uint64_t{1} << 20);
            },
            {.nodes = 2});
}

}  // namespace
}  // namespace tsprun::detail::test::outside_heap_test
