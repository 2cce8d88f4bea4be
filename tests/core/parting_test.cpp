// How ranks leave a job: they complete what they have posted, wait for each other, and find what nobody has received.
#include "tests/support/run_ranks.h"
#include "tsprun/communicator.h"
#include "tsprun/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::test::parting_test {
namespace {

using Values = std::vector<float>;

/// Ranks that reach each other over shared memory, and over sockets.
const std::vector<RankOptions>& ways() {
  static const std::vector<RankOptions> both = {{}, {.nodes = 2}};
  return both;
}

/// Runs the ranks, of which none finds anything wrong by itself, and expects that one of them at least learns when it leaves that
/// it hasn't received a message of `kind`. None leaves before all have sent: who sends to a rank that has left is told at once.
void expect_unreceived(int ranks, const RankBody& body, const std::string& kind) {
  for (const RankOptions& options : ways()) {
    const std::vector<RankOutcome> outcomes = try_ranks(
        ranks,
        [&](Context& context) {
          EXPECT_NO_THROW(body(context));
          EXPECT_NO_THROW(context.world().barrier({.stream = Stream::gradients}));
          context.leave();
        },
        options);
    EXPECT_TRUE(std::ranges::any_of(outcomes, [&](const RankOutcome& each) {
      return each.cause == Cause::mismatch && each.message.find(kind) != std::string::npos &&
             each.message.find("hasn't received") != std::string::npos;
    })) << describe(outcomes);
    EXPECT_TRUE(std::ranges::all_of(outcomes, [](const RankOutcome& each) {
      return !each.failed || each.cause == Cause::mismatch;
    })) << describe(outcomes);
  }
}

TEST(UnlikeRoots, OfABroadcastAreAMismatchWhenRanksLeave) {
  const auto one_other = [](Context& context) {
    Values x(16, static_cast<float>(context.rank()));
    context.world().broadcast(std::span(x), context.rank() == 1 ? 1 : 0, {.stream = Stream::kv});
    for (int i = 0; i < 100; ++i) context.world().all_reduce(std::span(x), Reduction::max);
  };
  expect_unreceived(4, one_other, "broadcast of f32 (64 B");
  const auto each_its_own = [](Context& context) {
    Values x(16);
    context.world().broadcast(std::span(x), context.rank());
  };
  expect_unreceived(2, each_its_own, "broadcast");
}

TEST(UnlikeRoots, OfOtherOperationsToo) {
  const auto other = [](Context& context) { return 1 - context.rank(); };
  expect_unreceived(
      2,
      [&](Context& context) {
        Values x(16);
        context.world().reduce(std::span<const float>(x), std::span(x), Reduction::sum, other(context));
      },
      "reduce");
  expect_unreceived(
      2,
      [&](Context& context) {
        Values x(16);
        Values all(32);
        context.world().gather(std::span<const float>(x), std::span(all), other(context));
      },
      "gather");
  expect_unreceived(
      2,
      [](Context& context) {
        Values all(32);
        Values x(16);
        context.world().scatter(std::span<const float>(all), std::span(x), context.rank());
      },
      "scatter");
}

TEST(UnlikeRoots, OfAGroupWithAChannelOfItsOwnToo) {
  const auto body = [](Context& context) {
    const std::vector<int> all = {0, 1};
    Communicator own = context.world().subgroup(all, Channel::own);
    Values x(16);
    own.broadcast(std::span(x), context.rank());
  };
  expect_unreceived(2, body, "channel (64 B");
}

TEST(AMessageThatNobodyReceives, IsAMismatchWhenBothHaveFinished) {
  for (const std::int32_t tag : {kNoTag, 5}) {
    const auto body = [tag](Context& context) {
      Values x(16);
      if (context.rank() == 0) context.world().send(std::span<const float>(x), 1, {.tag = tag});
      context.world().barrier({.stream = Stream::kv});  // who sends to a rank that has left is told at once
    };
    expect_unreceived(2, body, tag == kNoTag ? "send of f32 (64 B" : "f32 (64 B, tag 5)");
  }
}

TEST(Leaving, CompletesWhatWasPosted) {
  for (const RankOptions& options : ways()) {
    run_ranks(
        3,
        [](Context& context) {
          Values x(40'000, static_cast<float>(context.rank() + 1));
          Work work = context.world().post_all_reduce(std::span<const float>(x), std::span(x), Reduction::sum);
          if (context.rank() == 1) work.wait();
          context.leave();
          EXPECT_EQ(std::ranges::count(x, 6.0F), 40'000);
        },
        options);
  }
}

// Over sockets rank 0 itself is told; over shared memory rank 1 finds its message.
TEST(Leaving, WithAnOperationThatTheOtherRankNeverJoinsFails) {
  for (const RankOptions& options : ways()) {
    Values x(16);
    const std::vector<RankOutcome> outcomes = try_ranks(
        2,
        [&](Context& context) {
          if (context.rank() == 0) context.world().post_all_reduce(std::span<const float>(x), std::span(x), Reduction::sum);
          context.leave();
        },
        options);
    EXPECT_TRUE(outcomes[0].failed || outcomes[1].failed) << describe(outcomes);
    for (const RankOutcome& each : outcomes) {
      EXPECT_TRUE(!each.failed || each.message.find("all_reduce of f32") != std::string::npos) << describe(outcomes);
    }
  }
}

TEST(Leaving, WaitsForTheOthersUpToTheTimeout) {
  for (const auto& [late, left_at] : {std::pair{5.0, 5.0}, std::pair{100.0, 60.0}}) {
    SharedClock clock;
    double waited = 0;
    run_ranks(2,
              [&, late = late](Context& context) {
                if (context.rank() == 1) {
                  clock.sleep_for(static_cast<std::uint64_t>(late * 1e9));
                  return;
                }
                context.leave();
                waited = clock.seconds();
              },
              {.timeout_ns = 60'000'000'000, .clock = &clock});
    EXPECT_GE(waited, left_at);
    EXPECT_LT(waited, left_at + 1);
  }
}

TEST(Leaving, EndsTheWaitOfARankThatNeedsMore) {
  for (const RankOptions& options : ways()) {
    const std::vector<RankOutcome> outcomes = try_ranks(
        2,
        [](Context& context) {
          Values x(16);
          if (context.rank() == 0) context.world().recv(std::span(x), 1);
        },
        options);
    EXPECT_TRUE(outcomes[0].failed) << describe(outcomes);
    EXPECT_EQ(outcomes[0].culprit, 1) << describe(outcomes);
    EXPECT_FALSE(outcomes[1].failed) << describe(outcomes);
  }
}

TEST(Leaving, ComesAfterWhatAProgressHasDrained) {
  for (const RankOptions& options : ways()) {
    run_ranks(
        2,
        [](Context& context) {
          Values x(40'000, static_cast<float>(context.rank() + 1));
          {
            Progress progress(context);
            progress.post([&](Context& rank) {
              return rank.world().post_all_reduce(std::span<const float>(x), std::span(x), Reduction::sum);
            });
            EXPECT_TRUE(progress.drain());
          }
          EXPECT_EQ(std::ranges::count(x, 3.0F), 40'000);
        },
        options);
  }
}

// Its buffer may be gone.
TEST(Leaving, DoesntReceiveWhatAProgressHasGivenUp) {
  std::atomic<bool> given_up = false;
  Values x(16);
  run_ranks(2, [&](Context& context) {
    if (context.rank() == 1) {
      while (!given_up) std::this_thread::yield();
      const Values sevens(16, 7);
      context.world().send(std::span<const float>(sevens), 0);
      return;
    }
    {
      Progress progress(context);
      progress.post([&](Context& rank) { return rank.world().post_recv(std::span(x), 1); });
    }
    given_up = true;
    context.leave();
  });
  EXPECT_EQ(x, Values(16));
}

}  // namespace
}  // namespace tsprun::detail::test::parting_test
