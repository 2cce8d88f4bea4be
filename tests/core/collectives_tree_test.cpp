// The tree all_reduce on groups of any size, with and without views. Small whole numbers, whose sums are exact in every order,
// are compared with a plain loop; of others all ranks have the same bits, as near to the exact sum as one rounding and the order
// allow.

#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace tsprun::detail::test::collectives_tree_test {
namespace {

constexpr CallOptions kTree{.purpose = Purpose::gradients, .algorithm = Algorithm::tree};

/// Ranks, on one node or one on each, so that no memory can be viewed.
struct Place {
  int ranks;
  bool apart;
};

class TreeAllReduce : public testing::TestWithParam<Place> {
 protected:
  int ranks() const { return GetParam().ranks; }
  RankOptions options() const { return {.heap_bytes = 32 << 20, .nodes = GetParam().apart ? ranks() : 1, .reassociate = true}; }
};
INSTANTIATE_TEST_SUITE_P(Groups, TreeAllReduce,
                         testing::Values(Place{2, false}, Place{3, false}, Place{5, false}, Place{8, false}, Place{2, true},
                                         Place{3, true}, Place{4, true}, Place{7, true}, Place{9, true}),
                         [](const testing::TestParamInfo<Place>& place) {
                           return std::to_string(place.param.ranks) + (place.param.apart ? "RanksApart" : "Ranks");
                         });

template <Element T>
T term(int rank, std::size_t index) {
  return static_cast<T>(static_cast<float>(mix(static_cast<std::uint64_t>(rank), index) % 17) - 8.0F);
}

template <Element T>
void add_and_compare(Context& context, std::size_t count, Reduction reduction, bool in_place) {
  std::vector<T> mine(count);
  for (std::size_t i = 0; i < count; ++i) mine[i] = term<T>(context.rank(), i);
  std::vector<T> other(in_place ? 0 : count);
  const std::span<T> result = in_place ? std::span(mine) : std::span(other);
  context.world().all_reduce(ConstBuffer(std::span<const T>(mine)), Buffer(result), reduction, kTree);
  for (std::size_t i = 0; i < count; ++i) {
    float expected = static_cast<float>(term<T>(0, i));
    for (int r = 1; r < context.size(); ++r) expected = combine(expected, static_cast<float>(term<T>(r, i)), reduction);
    ASSERT_TRUE(same_bits(result[i], static_cast<T>(expected))) << i << " of " << count << ", " << name(reduction);
  }
}

TEST_P(TreeAllReduce, GivesExactSumsOfWholeNumbers) {
  run_ranks(
      ranks(),
      [&](Context& context) {
        // Fewer elements than ranks, chunks of unlike sizes, several pieces of work.
        for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 3, 1000, 400'001}) {
          for (const bool in_place : {false, true}) {
            add_and_compare<float>(context, count, Reduction::sum, in_place);
            if (count > 1000) continue;
            add_and_compare<double>(context, count, Reduction::max, in_place);
            add_and_compare<bf16>(context, count, Reduction::sum, in_place);
            add_and_compare<std::int32_t>(context, count, Reduction::min, in_place);
          }
        }
      },
      options());
}

TEST_P(TreeAllReduce, RoundsOnceAndGivesAllRanksTheSameBits) {
  constexpr std::size_t kCount = 3000;
  std::vector<std::vector<bf16>> results(static_cast<std::size_t>(ranks()));
  const auto value = [](int rank, std::size_t index) {
    return static_cast<float>(mix(static_cast<std::uint64_t>(rank) + 90, index) % 1000) / 777.0F + 0.1F;
  };
  run_ranks(
      ranks(),
      [&](Context& context) {
        std::vector<bf16> mine(kCount);
        for (std::size_t i = 0; i < kCount; ++i) mine[i] = static_cast<bf16>(value(context.rank(), i));
        context.world().all_reduce(Buffer(std::span(mine)), Reduction::average, kTree);
        results[static_cast<std::size_t>(context.rank())] = std::move(mine);
      },
      options());
  for (std::size_t i = 0; i < kCount; ++i) {
    double exact = 0;
    for (int r = 0; r < ranks(); ++r) exact += static_cast<float>(static_cast<bf16>(value(r, i)));
    exact /= ranks();
    ASSERT_LE(std::abs(static_cast<float>(results[0][i]) - exact), exact / 255) << i;  // half of a bf16's last place
  }
  for (const std::vector<bf16>& each : results) EXPECT_EQ(std::memcmp(each.data(), results[0].data(), kCount * sizeof(bf16)), 0);
}

TEST_P(TreeAllReduce, BringsAllRanksTogetherAsManyBytesAsARing) {
  constexpr std::size_t kCount = 1001;
  std::atomic<std::uint64_t> received = 0;
  run_ranks(
      ranks(),
      [&](Context& context) {
        std::vector<bf16> data(kCount);
        context.world().all_reduce(Buffer(std::span(data)), Reduction::sum, kTree);
        received += context.traffic().received[static_cast<std::size_t>(Purpose::gradients)];
      },
      options());
  EXPECT_EQ(received, (sizeof(float) + sizeof(bf16)) * kCount * static_cast<std::uint64_t>(ranks() - 1));
}

TEST(TreeAllReduceOfSeveralCalls, MayBeUnderWayOnTwoStreams) {
  run_ranks(5,
            [](Context& context) {
              std::vector<float> one(5000, 1.0F);
              std::vector<float> two(5000, 2.0F);
              CallOptions other = kTree;
              other.stream = Stream::weights;
              for (int i = 0; i < 5; ++i) {
                Work first = context.world().post_all_reduce(ConstBuffer(std::span<const float>(one)), Buffer(std::span(one)),
                                                             Reduction::sum, kTree);
                Work second = context.world().post_all_reduce(ConstBuffer(std::span<const float>(two)), Buffer(std::span(two)),
                                                              Reduction::average, other);
                second.wait();
                first.wait();
              }
              for (const float each : one) ASSERT_EQ(each, 3125.0F);
              for (const float each : two) ASSERT_EQ(each, 2.0F);
            },
            {.heap_bytes = 8 << 20, .nodes = 5, .reassociate = true});
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_tree_test
