// Communicators with a channel of their own: operations keep their order within each, and need none between them, over every
// transport. The witness of a result is arithmetic on what all ranks sent.
#include "tests/support/calls.h"
#include "tests/support/oracle.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test::collectives_channels_test {
namespace {

struct Way {
  const char* name;
  RankOptions options;
};

std::vector<Way> ways() {
  return {{"shm", {}},
          {"shm, verified", {.verify = true}},
          {"tcp", {.share = false}},
          {"tcp, oversubscribed", {.cores = 1, .share = false}},
          {"two nodes", {.cores = 1, .nodes = 2}}};
}

std::vector<int> all_of(const Context& context) {
  std::vector<int> ranks(static_cast<std::size_t>(context.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Sizes within a header's line, on both sides of the largest small message, of staging, and larger than any lane.
constexpr std::size_t kCounts[] = {1, 6, 300, 2'048, 2'049, 9'000, 300'000};

TEST(Channels, RanksMayCallGroupsInOppositeOrders) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    run_ranks(
        2,
        [](Context& context) {
          Communicator first = context.world().subgroup(all_of(context), Channel::own);
          Communicator second = context.world().subgroup(all_of(context), Channel::own);
          for (const std::size_t count : kCounts) {
            std::vector<float> a(count, 1.0F + static_cast<float>(context.rank()));
            std::vector<float> b(count, 10.0F);
            const auto post_a = [&] { return first.post_all_reduce(std::span<const float>(a), std::span(a), Reduction::sum); };
            const auto post_b = [&] { return second.post_all_reduce(std::span<const float>(b), std::span(b), Reduction::sum); };
            Work early = context.rank() == 0 ? post_a() : post_b();
            Work late = context.rank() == 0 ? post_b() : post_a();
            // Waits for what the peer called last.
            early.wait();
            late.wait();
            EXPECT_EQ(std::ranges::count(a, 3.0F), static_cast<std::ptrdiff_t>(count));
            EXPECT_EQ(std::ranges::count(b, 20.0F), static_cast<std::ptrdiff_t>(count));
          }
        },
        way.options);
  }
}

// Every rank posts the calls of all groups in an order of its own, which has only each group's order in common with the others'.
TEST(Channels, NeedNoOrderBetweenThem) {
  constexpr std::size_t kGroups = 5;
  constexpr std::size_t kCalls = 12;
  constexpr int kRanks = 4;
  for (const Way& way : ways()) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE(std::string(way.name) + ", seed " + std::to_string(seed));
      run_ranks(
          kRanks,
          [&](Context& context) {
            // Two groups of all, and three that overlap in a ring.
            std::vector<Communicator> groups;
            std::vector<std::size_t> mine;
            for (std::size_t g = 0; g < kGroups; ++g) {
              std::vector<int> ranks = all_of(context);
              if (g >= 2) ranks = {static_cast<int>(g) - 2, static_cast<int>(g) - 1};
              if (g == 4) ranks = {0, 2, 3};
              if (std::ranges::find(ranks, context.rank()) == ranks.end()) continue;
              mine.push_back(g);
              groups.push_back(context.world().subgroup(ranks, Channel::own));
            }
            std::vector<std::size_t> order;
            for (std::size_t i = 0; i < groups.size() * kCalls; ++i) order.push_back(i / kCalls);
            std::mt19937 random(seed * 10 + static_cast<unsigned>(context.rank()));
            std::shuffle(order.begin(), order.end(), random);
            std::vector<std::size_t> done(groups.size());
            std::vector<std::unique_ptr<Running>> running;
            for (const std::size_t place : order) {
              const std::size_t number = done[place]++;
              Call call = random_call(1'000 * seed + 100 * mine[place] + number, groups[place].size(), 20'000);
              if (!can_run(groups[place], call.op, call.options.algorithm)) call.options.algorithm = Algorithm::automatic;
              call.posted = true;
              running.push_back(start(context, groups[place], call));
              if (random() % 8 == 0) context.tick();
            }
            std::shuffle(running.begin(), running.end(), random);
            for (const auto& each : running) each->finish();
          },
          way.options);
    }
  }
}

// A ring of groups of two in which every rank begins with the group to its right: with one queue a rank, nobody could begin.
TEST(Channels, ARingOfOverlappingGroupsHasNoCircleOfWaits) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    run_ranks(
        3,
        [](Context& context) {
          const int right = (context.rank() + 1) % 3;
          const int left = (context.rank() + 2) % 3;
          const auto pair = [&](int other) {
            return context.world().subgroup(std::vector<int>{std::min(context.rank(), other), std::max(context.rank(), other)},
                                            Channel::own);
          };
          Communicator to_right = pair(right);
          Communicator to_left = pair(left);
          Work first = to_right.post_barrier();
          Work second = to_left.post_barrier();
          first.wait();
          second.wait();
        },
        way.options);
  }
}

// One group's messages fill the mail's window and all lanes while nobody asks for them; another's go ahead nevertheless.
TEST(Channels, AFullWindowOfOneGroupHoldsUpNoOther) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    run_ranks(
        2,
        [](Context& context) {
          constexpr std::size_t kMany = 150;
          Communicator full = context.world().subgroup(all_of(context), Channel::own);
          Communicator other = context.world().subgroup(all_of(context), Channel::own);
          std::vector<std::vector<float>> values(kMany, std::vector<float>(500));
          std::vector<Work> works;
          if (context.rank() == 0) {
            for (std::size_t i = 0; i < kMany; ++i) {
              values[i].assign(500, static_cast<float>(i));
              works.push_back(full.post_broadcast(std::span(values[i]), 0));
            }
          }
          std::vector<float> sum(50'000, 1.0F);
          for (int i = 0; i < 4; ++i) other.all_reduce(std::span(sum), Reduction::sum);
          EXPECT_EQ(sum.back(), 16.0F);
          if (context.rank() == 1) {
            for (std::size_t i = 0; i < kMany; ++i) works.push_back(full.post_broadcast(std::span(values[i]), 0));
          }
          for (Work& work : works) work.wait();
          for (std::size_t i = 0; i < kMany; ++i) EXPECT_EQ(values[i].back(), static_cast<float>(i));
        },
        way.options);
  }
}

TEST(Channels, MessagesWithAndWithoutATagAreMatchedApart) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    run_ranks(
        2,
        [](Context& context) {
          Communicator group = context.world().subgroup(all_of(context), Channel::own);
          for (const std::size_t count : kCounts) {
            std::vector<std::int32_t> plain(count, 1);
            std::vector<std::int32_t> tagged(count, 2);
            if (context.rank() == 0) {
              Work one = group.post_send(std::span<const std::int32_t>(plain), 1);
              Work two = group.post_send(std::span<const std::int32_t>(tagged), 1, {.tag = 7});
              one.wait();
              two.wait();
            } else {
              std::vector<std::int32_t> a(count);
              std::vector<std::int32_t> b(count);
              Work any = group.post_recv(std::span(b), kAnySource, {.tag = kAnyTag});
              group.recv(std::span(a), 0);
              any.wait();
              EXPECT_EQ(a, plain);
              EXPECT_EQ(b, tagged);
            }
          }
        },
        way.options);
  }
}

TEST(Channels, AMismatchWithinAGroupIsNamedBeforeDataMoves) {
  for (const Way& way : ways()) {
    for (const std::size_t count : std::initializer_list<std::size_t>{6, 300, 2'048, 9'000}) {
      SCOPED_TRACE(std::string(way.name) + ", " + std::to_string(count));
      std::vector<float> kept;
      const std::vector<RankOutcome> outcomes = try_ranks(
          2,
          [&](Context& context) {
            Communicator first = context.world().subgroup(all_of(context), Channel::own);
            Communicator second = context.world().subgroup(all_of(context), Channel::own);
            std::vector<float> other(10, 1.0F);
            first.post_all_reduce(std::span<const float>(other), std::span(other), Reduction::sum).wait();
            std::vector<float> data(count + static_cast<std::size_t>(context.rank()), context.rank() == 0 ? 3.0F : 7.0F);
            if (context.rank() == 0) {
              second.broadcast(std::span(data), 0);
              context.world().barrier();
            } else {
              try {
                second.broadcast(std::span(data), 0);
              } catch (const Error&) {
                kept = data;
                throw;
              }
            }
          },
          way.options);
      ASSERT_TRUE(outcomes[1].failed);
      for (const RankOutcome& each : outcomes) EXPECT_EQ(each.cause, Cause::mismatch) << each.message;
      EXPECT_EQ(outcomes[1].op, "broadcast");
      EXPECT_EQ(outcomes[1].sequence, 1U);
      // By the message, or by the board if that is looked at first.
      for (const std::size_t bytes : {4 * count, 4 * (count + 1)}) {
        EXPECT_NE(outcomes[1].message.find(std::to_string(bytes) + " B"), std::string::npos) << outcomes[1].message;
      }
      EXPECT_EQ(kept, std::vector<float>(count + 1, 7.0F));
    }
  }
}

TEST(Channels, ADeadlockBetweenGroupsNamesWhatEachRankWaitsIn) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes =
      try_ranks(2,
                [](Context& context) {
                  Communicator first = context.world().subgroup(all_of(context), Channel::own);
                  Communicator second = context.world().subgroup(all_of(context), Channel::own);
                  std::vector<float> data(100, 1.0F);
                  // Each waits for what the other hasn't called.
                  if (context.rank() == 0) first.all_reduce(std::span(data), Reduction::sum);
                  else second.barrier();
                },
                {.timeout_ns = 400'000'000, .clock = &clock});
  for (const RankOutcome& each : outcomes) {
    EXPECT_EQ(each.cause, Cause::deadlock) << each.message;
    EXPECT_NE(each.message.find("rank 0 is in all_reduce #1"), std::string::npos) << each.message;
    EXPECT_NE(each.message.find("rank 1 is in barrier #1"), std::string::npos) << each.message;
  }
}

// The wait is for the second operation of a channel, but it is the first that lacks a rank's part.
TEST(Channels, AStallNamesTheOperationThatHasItsTurn) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes =
      try_ranks(2,
                [&](Context& context) {
                  Communicator group = context.world().subgroup(all_of(context), Channel::own);
                  if (context.rank() == 1) {
                    clock.sleep_for(1'000'000'000);  // silent
                    return;
                  }
                  std::vector<float> data(100, 1.0F);
                  Work first = group.post_all_reduce(std::span<const float>(data), std::span(data), Reduction::sum);
                  Work second = group.post_barrier();
                  second.wait();
                  first.wait();
                },
                {.timeout_ns = 300'000'000, .clock = &clock});
  ASSERT_TRUE(outcomes[0].failed);
  EXPECT_EQ(outcomes[0].cause, Cause::stalled);
  EXPECT_EQ(outcomes[0].culprit, 1);
  EXPECT_NE(outcomes[0].message.find("rank 0 is in all_reduce #1"), std::string::npos) << outcomes[0].message;
}

TEST(Channels, ADeathIsNamed) {
  const std::vector<RankOutcome> outcomes = try_ranks(3, [](Context& context) {
    Communicator group = context.world().subgroup(all_of(context), Channel::own);
    if (context.rank() == 2) return;
    group.barrier();
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].culprit, 2) << describe(outcomes);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_channels_test
