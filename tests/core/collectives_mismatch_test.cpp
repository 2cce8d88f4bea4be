// Ranks that don't call the same: an error that names both sides, on every rank that can't go on, and no wrong bytes, hangs or
// false verdicts.

#include "tests/support/calls.h"
#include "tests/support/oracle.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace tsprun::detail::test::collectives_mismatch_test {
namespace {

constexpr std::uint64_t kTimeout = 3'000'000'000;

/// Runs the body, which must fail by a mismatch; every rank that failed must say so, and say it in words that hold all of
/// `names`.
void expect_mismatch(SharedClock& clock, int ranks, const RankBody& body, const std::vector<std::string>& names) {
  const std::vector<RankOutcome> outcomes = try_ranks(ranks, body, RankOptions{.timeout_ns = kTimeout, .clock = &clock});
  EXPECT_LT(clock.seconds(), 2e-9 * kTimeout) << describe(outcomes);
  bool any = false;
  for (const RankOutcome& outcome : outcomes) {
    if (!outcome.failed) continue;
    any = true;
    EXPECT_EQ(outcome.cause, Cause::mismatch) << describe(outcomes);
    for (const std::string& word : names) {
      EXPECT_NE(outcome.message.find(word), std::string::npos) << "\"" << word << "\" is missing in\n" << describe(outcomes);
    }
  }
  EXPECT_TRUE(any) << "all ranks took the calls for matching";
}
void expect_mismatch(int ranks, const RankBody& body, const std::vector<std::string>& names) {
  SharedClock clock;
  expect_mismatch(clock, ranks, body, names);
}

void all_reduce(Communicator& group, std::size_t count, Reduction reduction = Reduction::sum, CallOptions options = {}) {
  std::vector<float> data(count, 1.0F);
  group.all_reduce(Buffer(std::span<float>(data)), reduction, options);
}
void all_gather(Communicator& group, std::size_t count) {
  std::vector<float> send(count, 1.0F);
  std::vector<float> recv(count * static_cast<std::size_t>(group.size()));
  group.all_gather(std::span<const float>(send), std::span<float>(recv));
}
template <Element T>
void broadcast(Communicator& group, std::size_t count, int root) {
  std::vector<T> data(count, T{});
  group.broadcast(std::span<T>(data), root);
}

class Mismatch : public testing::TestWithParam<std::size_t> {
 protected:
  std::size_t count() const { return GetParam(); }
};

TEST_P(Mismatch, OfOperations) {
  expect_mismatch(2,
                  [&](Context& context) {
                    if (context.rank() == 0) all_reduce(context.world(), count());
                    else all_gather(context.world(), count());
                    context.world().barrier();
                  },
                  {"all_reduce", "all_gather", "rank 0", "rank 1"});
}

TEST_P(Mismatch, OfOperationAndBarrierOnManyRanks) {
  expect_mismatch(5,
                  [&](Context& context) {
                    if (context.rank() == 3) context.world().barrier();
                    else all_reduce(context.world(), count());
                    context.world().barrier();
                  },
                  {"all_reduce", "barrier"});
}

TEST_P(Mismatch, OfCounts) {
  for (Algorithm algorithm : algorithms_of(Op::all_reduce)) {
    expect_mismatch(3,
                    [&](Context& context) {
                      CallOptions options;
                      options.algorithm = algorithm;
                      all_reduce(context.world(), context.rank() == 1 ? count() + 1 : count(), Reduction::sum, options);
                      context.world().barrier();
                    },
                    {"all_reduce"});
  }
}

TEST_P(Mismatch, OfCountsOfOtherRanks) {
  // Rank 0 and 1 agree on their own parts, but not on rank 2's.
  expect_mismatch(3,
                  [&](Context& context) {
                    std::vector<std::size_t> counts = {count(), count(), count() + (context.rank() == 0 ? 4 : 0)};
                    std::vector<float> send(counts[static_cast<std::size_t>(context.rank())]);
                    std::vector<float> recv(counts[0] + counts[1] + counts[2]);
                    context.world().all_gather_v(std::span<const float>(send), std::span<float>(recv), counts);
                    context.world().barrier();
                  },
                  {"all_gather", "another rank's count"});
}

TEST_P(Mismatch, OfRoots) {
  for (int ranks : {2, 3, 5}) {
    expect_mismatch(ranks,
                    [&](Context& context) {
                      broadcast<float>(context.world(), count(), context.rank() == 1 ? 1 : 0);
                      context.world().barrier();
                    },
                    {"broadcast"});
  }
}

TEST_P(Mismatch, OfDTypes) {
  // The same number of bytes, so only the dtype differs.
  expect_mismatch(2,
                  [&](Context& context) {
                    if (context.rank() == 0) broadcast<float>(context.world(), 2 * count(), 0);
                    else broadcast<double>(context.world(), count(), 0);
                    context.world().barrier();
                  },
                  {"broadcast", "f32", "f64"});
}

TEST_P(Mismatch, OfIntegersAndFloatsOfOneSize) {
  expect_mismatch(2,
                  [&](Context& context) {
                    std::vector<float> data(count(), 1.0F);
                    const DType dtype = context.rank() == 0 ? DType::f32 : DType::i32;
                    context.world().all_reduce(Buffer(data.data(), data.size(), dtype), Reduction::sum);
                    context.world().barrier();
                  },
                  {"all_reduce", "f32", "i32"});
}

TEST_P(Mismatch, OfReductionsOfIntegers) {
  expect_mismatch(2,
                  [&](Context& context) {
                    std::vector<std::int64_t> data(count(), 1);
                    const Reduction reduction = context.rank() == 0 ? Reduction::bit_xor : Reduction::product;
                    context.world().all_reduce(std::span(data), reduction);
                    context.world().barrier();
                  },
                  {"all_reduce", "xor", "product"});
}

TEST_P(Mismatch, OfReductions) {
  expect_mismatch(2,
                  [&](Context& context) {
                    all_reduce(context.world(), count(), context.rank() == 0 ? Reduction::sum : Reduction::max);
                    context.world().barrier();
                  },
                  {"all_reduce", "sum", "max"});
}

TEST_P(Mismatch, OfSendAndReceiveCounts) {
  expect_mismatch(2,
                  [&](Context& context) {
                    std::vector<float> data(count() + (context.rank() == 0 ? 1 : 0));
                    if (context.rank() == 0) context.world().send(std::span<const float>(data), 1);
                    else context.world().recv(std::span<float>(data), 0);
                    context.world().barrier();
                  },
                  {"send", "recv"});
}

TEST_P(Mismatch, LeavesTheReceiversBufferUntouched) {
  std::vector<float> data(count(), 42.0F);
  try_ranks(
      2,
      [&](Context& context) {
        if (context.rank() == 0) {
          std::vector<double> other(count(), 1.0);
          context.world().send(std::span<const double>(other), 1);
          context.world().barrier();
        } else {
          context.world().recv(std::span<float>(data), 0);
        }
      },
      RankOptions{.timeout_ns = kTimeout});
  EXPECT_TRUE(std::all_of(data.begin(), data.end(), [](float value) { return value == 42.0F; }));
}

TEST_P(Mismatch, OfGroupOrder) {
  // Both groups have the same members, but the ranks disagree about who is who.
  expect_mismatch(3,
                  [&](Context& context) {
                    const std::vector<int> up = {0, 1, 2};
                    const std::vector<int> down = {2, 1, 0};
                    Communicator group = context.world().subgroup(context.rank() == 0 ? up : down);
                    all_reduce(group, count());
                    context.world().barrier();
                  },
                  {"all_reduce"});
}

INSTANTIATE_TEST_SUITE_P(Sizes, Mismatch, testing::Values(1, 1000, 300'000),
                         [](const auto& test) { return std::to_string(test.param); });

// Ranks that wait for each other although no message of theirs could ever meet: 2 expects data from 1, which waits in a barrier
// for 0, which waits for 2 to take its own data. It looks like a deadlock to each of them; the boards show that the calls differ.
TEST(MismatchWithoutMessages, IsFoundOnTheBoards) {
  expect_mismatch(3,
                  [](Context& context) {
                    broadcast<float>(context.world(), 4'000'000, context.rank() == 2 ? 1 : 0);
                    context.world().barrier();
                  },
                  {"broadcast"});
}

// Rank 1 and 2 send to rank 0, which comes late: the two exchange nothing.
TEST(MismatchWithoutMessages, OfReductions) {
  SharedClock clock;
  expect_mismatch(clock, 3,
                  [&](Context& context) {
                    const std::vector<float> send(4'000'000, 1.0F);
                    std::vector<float> recv(context.rank() == 0 ? send.size() : 0);
                    if (context.rank() == 0) clock.sleep_for(2'000'000'000);
                    context.world().reduce(std::span<const float>(send), std::span<float>(recv),
                                           context.rank() == 1 ? Reduction::max : Reduction::sum, 0);
                    context.world().barrier();
                  },
                  {"reduce", "the arguments differ: ", "max", "sum"});
}

TEST(MismatchWithoutMessages, OfAReceiveFromARankInABarrierOfOthers) {
  // Rank 0 and 1 are in a barrier of three, rank 2 is in one of two with 0: who waits for whom leads nowhere useful.
  expect_mismatch(3,
                  [](Context& context) {
                    const std::vector<int> pair = {0, 2};
                    if (context.rank() == 2) {
                      Communicator group = context.world().subgroup(pair);
                      group.barrier();
                    } else {
                      context.world().barrier();
                    }
                  },
                  {"barrier"});
}

// After a mismatch the engine stays broken: later calls throw the same first cause, at once.
TEST(MismatchIsFinal, LaterCallsThrowTheSameCause) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      2,
      [&](Context& context) {
        try {
          if (context.rank() == 0) all_reduce(context.world(), 10);
          else all_gather(context.world(), 10);
          context.world().barrier();
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.cause(), Cause::mismatch) << error.what();
        }
        const std::uint64_t start = clock.now_ns();
        EXPECT_THROW(context.world().barrier(), Error);
        EXPECT_LT(clock.now_ns() - start, 500'000'000U);
        context.world().barrier();
      },
      RankOptions{.timeout_ns = kTimeout, .clock = &clock});
  for (const RankOutcome& outcome : outcomes) EXPECT_EQ(outcome.cause, Cause::mismatch) << describe(outcomes);
}

TEST(MismatchOfCounts, IsSaidToBeOneWhereTheMessageShowsIt) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      2, [](Context& context) { all_reduce(context.world(), context.rank() == 0 ? 4 : 5); },
      RankOptions{.timeout_ns = kTimeout, .clock = &clock});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::mismatch) << describe(outcomes);
    EXPECT_NE(outcome.message.find("the counts differ"), std::string::npos) << outcome.message;
    EXPECT_EQ(outcome.message.find("alike"), std::string::npos) << outcome.message;
  }
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_mismatch_test
