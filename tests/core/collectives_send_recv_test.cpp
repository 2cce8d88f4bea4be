// send_recv, and chunks placed by offsets: what the random calls don't spell out. Circles on one stream, partners that use plain
// sends and receives, unlike halves, refusals, and what a mismatch says.

#include "core/collectives/chunks.h"
#include "tests/support/calls.h"
#include "tests/support/oracle.h"
#include "tests/support/refusal.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tsprun::detail::test::collectives_send_recv_test {
namespace {

template <Element T>
std::vector<T> samples(int rank, std::size_t count) {
  std::vector<T> data(count);
  fill(std::span<T>(data), 5, rank);
  return data;
}

template <Element T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(same_bits(got[i], expected[i])) << what << ", element " << i;
}

// Larger than any buffer of a lane, plain memory: every rank's message can only be taken by a peer that is in its own send_recv.
TEST(SendRecv, CircleOfLargeMessagesOnOneStream) {
  for (const int ranks : {1, 2, 3, 8}) {
    run_ranks(ranks, [](Context& context) {
      Communicator& world = context.world();
      constexpr std::size_t kCount = 300'000;
      const int n = world.size();
      std::vector<float> here = samples<float>(world.rank(), kCount);
      std::vector<float> next(kCount);
      for (int round = 1; round <= n; ++round) {
        world.send_recv(std::span<const float>(here), (world.rank() + 1) % n, std::span<float>(next), (world.rank() + n - 1) % n);
        expect_equal(next, samples<float>((world.rank() + n - round % n) % n, kCount), "round " + std::to_string(round));
        std::swap(here, next);
      }
    });
  }
}

TEST(SendRecv, PairsWithPlainSendsAndReceives) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{2}, std::size_t{5'000}, std::size_t{200'000}}) {
    run_ranks(3, [count](Context& context) {
      Communicator& world = context.world();
      const int p = world.rank();
      const std::vector<double> mine = samples<double>(p, count);
      std::vector<double> got(count);
      // Rank 0 sends to 1, which sends to 2, which sends to 0. Rank 1 speaks in single calls.
      for (int round = 0; round < 3; ++round) {
        std::fill(got.begin(), got.end(), 0.0);
        if (p == 1) {
          world.recv(std::span<double>(got), 0);
          world.send(std::span<const double>(mine), 2);
        } else if (p == 0) {
          world.send_recv(std::span<const double>(mine), 1, std::span<double>(got), 2);
        } else {
          world.post_send_recv(std::span<const double>(mine), 0, std::span<double>(got), 1).wait();
        }
        expect_equal(got, samples<double>((p + 2) % 3, count), "rank " + std::to_string(p));
      }
    });
  }
}

TEST(SendRecv, HalvesMayDifferInCountAndType) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    const std::vector<double> doubles = samples<double>(7, 3);
    const std::vector<std::byte> bytes = samples<std::byte>(8, 70'001);
    std::vector<double> got_doubles(3);
    std::vector<std::byte> got_bytes(70'001);
    if (world.rank() == 0) {
      world.send_recv(std::span<const double>(doubles), 1, std::span<std::byte>(got_bytes), 1);
      expect_equal(got_bytes, bytes, "bytes");
    } else {
      world.send_recv(std::span<const std::byte>(bytes), 0, std::span<double>(got_doubles), 0);
      expect_equal(got_doubles, doubles, "doubles");
    }
  });
}

TEST(SendRecv, NothingOneWayAndSomethingTheOther) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    std::vector<float> got(world.rank() == 0 ? 1000 : 0);
    const std::vector<float> mine = samples<float>(world.rank(), world.rank() == 0 ? 0 : 1000);
    world.send_recv(std::span<const float>(mine), 1 - world.rank(), std::span<float>(got), 1 - world.rank());
    if (world.rank() == 0) expect_equal(got, samples<float>(1, 1000), "rank 0");
  });
}

TEST(SendRecv, WithOneselfCopies) {
  run_ranks(3, [](Context& context) {
    Communicator& world = context.world();
    const int p = world.rank();
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1'000'000}}) {
      const std::vector<float> mine = samples<float>(p, count);
      std::vector<float> got(count);
      world.send_recv(std::span<const float>(mine), p, std::span<float>(got), p);
      expect_equal(got, mine, "copy");
    }
  });
}

TEST(SendRecv, RefusesWhatCantBe) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    const int p = world.rank();
    std::vector<float> a(4);
    std::vector<float> b(4);
    const std::span<const float> send(a);
    EXPECT_NE(refused_text([&] { world.send_recv(send, 2, std::span<float>(b), 0); }).find("to = 2"), std::string::npos);
    EXPECT_NE(refused_text([&] { world.send_recv(send, 0, std::span<float>(b), -1); }).find("from = -1"), std::string::npos);
    EXPECT_NE(refused_text([&] { world.send_recv(send, p, std::span<float>(b), 1 - p); }).find("own rank"), std::string::npos);
    EXPECT_NE(refused_text([&] { world.send_recv(send, 1 - p, std::span<float>(a), 1 - p); }).find("overlaps"),
              std::string::npos);
    EXPECT_NE(refused_text([&] { world.send_recv(send, p, std::span<float>(b).first(3), p); }).find("3 f32"), std::string::npos);
    world.barrier();  // nothing was begun
  });
}

TEST(SendRecv, MismatchNamesBothSides) {
  const std::vector<RankOutcome> outcomes = try_ranks(
      2,
      [](Context& context) {
        std::vector<float> mine(10);
        std::vector<float> got(context.rank() == 0 ? 11 : 10);
        context.world().send_recv(std::span<const float>(mine), 1 - context.rank(), std::span<float>(got), 1 - context.rank());
        context.world().barrier();
      },
      RankOptions{.timeout_ns = 3'000'000'000});
  EXPECT_EQ(outcomes[0].cause, Cause::mismatch) << describe(outcomes);
  for (const std::string word : {"rank 0 is in send_recv of f32 (44 B", "rank 1 sent", "40 B"}) {
    EXPECT_NE(outcomes[0].message.find(word), std::string::npos) << word << " is missing in\n" << describe(outcomes);
  }
}

// Each waits for a message that the other will only send afterwards: the report says from whom.
TEST(SendRecv, WithARankThatReceivesFirstElsewhereIsADeadlockThatIsNamed) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      3,
      [](Context& context) {
        Communicator& world = context.world();
        std::vector<float> mine(1);
        std::vector<float> got(1);
        const int n = world.size();
        const int p = world.rank();
        // Everyone receives from the left what the left has sent to its left.
        world.send_recv(std::span<const float>(mine), (p + n - 1) % n, std::span<float>(got), (p + n - 1) % n);
      },
      RankOptions{.clock = &clock});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::deadlock) << describe(outcomes);
    EXPECT_NE(outcome.message.find("send_recv #1 (f32, 4 B, to 2, from 2), waiting for rank 2"), std::string::npos)
        << describe(outcomes);
  }
}

// --- chunks placed by offsets ------------------------------------------------------------------------------------------------

TEST(PlacedChunks, LieWhereTheOffsetsSay) {
  const std::vector<std::size_t> counts = {3, 0, 5};
  const std::vector<std::size_t> offsets = {10, 99, 2};
  const Chunks chunks = Chunks::placed(counts, offsets);
  EXPECT_EQ(chunks.offset(0), 10U);
  EXPECT_EQ(chunks.offset(2), 2U);
  EXPECT_EQ(chunks.count(1), 0U);
  EXPECT_EQ(chunks.count(2), 5U);
  EXPECT_EQ(chunks.total(), 8U);
  EXPECT_EQ(chunks.largest(), 5U);
}

// Offsets are no part of what ranks agree on: one packs its chunks, the other spreads them, backwards.
TEST(PlacedChunks, LayoutsMayDifferFromRankToRank) {
  for (const Algorithm algorithm : algorithms_of(Op::all_gather)) {
    run_ranks(2, [algorithm](Context& context) {
      Communicator& world = context.world();
      if (!can_run(world, Op::all_gather, algorithm)) return;
      const CallOptions options{.algorithm = algorithm};
      const std::vector<std::size_t> counts = {3, 2};
      const std::vector<float> mine = world.rank() == 0 ? std::vector<float>{1, 2, 3} : std::vector<float>{4, 5};
      if (world.rank() == 0) {
        std::vector<float> all(5);
        world.all_gather_v(std::span<const float>(mine), std::span<float>(all), counts, options);
        EXPECT_EQ(all, (std::vector<float>{1, 2, 3, 4, 5}));
      } else {
        const std::vector<std::size_t> offsets = {4, 1};
        std::vector<float> all(8, -1.0F);
        world.all_gather_v(std::span<const float>(mine), std::span<float>(all), counts, offsets, options);
        EXPECT_EQ(all, (std::vector<float>{-1, 4, 5, -1, 1, 2, 3, -1}));
      }
    });
  }
}

TEST(PlacedChunks, RefusedWhereTheyOverlapOrLeaveTheBuffer) {
  run_ranks(1, [](Context& context) {
    Communicator self = context.world().subgroup(std::vector<int>{0});
    std::vector<float> all(10);
    const std::vector<float> mine(4);
    const auto message = [&](const std::vector<std::size_t>& counts, const std::vector<std::size_t>& offsets) {
      try {
        self.all_gather_v(std::span<const float>(mine), std::span<float>(all), counts, offsets);
      } catch (const Error& error) {
        EXPECT_EQ(error.cause(), Cause::refused);
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_EQ(message({4}, {6}), "");
    EXPECT_NE(message({4}, {7}).find("chunk 0 of 4 elements at offset 7 doesn't lie within recv, which has 10 f32"),
              std::string::npos);
    EXPECT_NE(message({4}, {~std::size_t{0}}).find("doesn't lie within recv"), std::string::npos);
    EXPECT_NE(message({4}, {}).find("offsets has 0 entries"), std::string::npos);
  });
  run_ranks(3, [](Context& context) {
    std::vector<float> all(10);
    const std::vector<float> mine(3);
    const std::vector<std::size_t> counts = {3, 3, 3};
    const std::vector<std::size_t> offsets = {6, 0, 2};
    try {
      std::vector<float> part(3);
      context.world().reduce_scatter_v(std::span<const float>(all), std::span<float>(part), counts, offsets, Reduction::sum);
      ADD_FAILURE() << "overlapping chunks were taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.cause(), Cause::refused);
      const std::string text = error.what();
      EXPECT_NE(text.find("chunk 1 (3 elements at offset 0) overlaps chunk 2 (at offset 2) of send"), std::string::npos) << text;
    }
    context.world().barrier();
  });
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_send_recv_test
