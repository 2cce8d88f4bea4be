// Receives with a tag that can't be, that get something else than they ask for, or that can't end: each says why.
#include "tests/support/refusal.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test::tagged_receives_test {
namespace {

TEST(TaggedMessages, OfAnotherTypeOrSizeThanTheirReceiveAreNamed) {
  for (const bool early : {true, false}) {
    for (const std::size_t count : {std::size_t{2}, std::size_t{5'000}}) {
      const std::vector<RankOutcome> outcomes = try_ranks(2, [&](Context& context) {
        Communicator& world = context.world();
        std::vector<std::int32_t> values(count);
        std::vector<float> other(count);
        if (world.rank() == 1) {
          Work work = world.post_send(std::span<const std::int32_t>(values), 0, {.tag = 4});
          const std::vector<std::int32_t> sign = {1};
          if (early) world.send(std::span<const std::int32_t>(sign), 0, {.tag = 9});
          work.wait();
        } else {
          std::vector<std::int32_t> sign(1);
          if (early) world.recv(std::span<std::int32_t>(sign), 1, {.tag = 9});
          std::fill(other.begin(), other.end(), 3.0F);
          try {
            world.recv(std::span<float>(other), kAnySource, {.tag = 4});
          } catch (...) {
            EXPECT_EQ(other, std::vector<float>(count, 3.0F));
            throw;
          }
        }
      });
      EXPECT_EQ(outcomes[0].cause, Cause::mismatch) << describe(outcomes);
      for (const std::string word : {"rank 0 receives f32", "tag 4", "message of rank 1", "i32"}) {
        EXPECT_NE(outcomes[0].message.find(word), std::string::npos) << word << " is missing in\n" << describe(outcomes);
      }
    }
  }
}

TEST(TaggedMessages, RefusesWhatCantBe) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    std::vector<std::int32_t> values(1);
    std::vector<std::int32_t> more(1);
    const std::span<std::int32_t> buffer(values);
    const int other = 1 - world.rank();
    EXPECT_NE(refused_text([&] { world.recv(buffer, kAnySource); }).find("with a tag"), std::string::npos);
    EXPECT_NE(refused_text([&] { world.send(buffer, other, {.tag = kAnyTag}); }).find("tag = -2"), std::string::npos);
    EXPECT_NE(refused_text([&] { world.recv(buffer, other, {.tag = -3}); }).find("tag = -3"), std::string::npos);
    EXPECT_NE(refused_text([&] { world.send(buffer, world.rank(), {.tag = 0}); }).find("itself"), std::string::npos);
    EXPECT_NE(refused_text([&] { world.send_recv(buffer, other, std::span<std::int32_t>(more), other, {.tag = 0}); }).find("tag"),
              std::string::npos);
    world.barrier();
  });
}

/// Expects every rank that runs `program` to fail with a deadlock whose message has this text.
void expect_deadlock(int ranks, const std::string& text, const RankBody& program) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(ranks, program, {.clock = &clock});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::deadlock) << describe(outcomes);
    EXPECT_NE(outcome.message.find(text), std::string::npos) << describe(outcomes);
  }
}

TEST(ATaggedReceive, OfAMessageThatNeverComesSaysWhatItWants) {
  expect_deadlock(2, "recv #1 (i32, 4 B, from 1, tag 5), waiting for rank 1", [](Context& context) {
    std::vector<std::int32_t> value(1);
    if (context.rank() == 1) context.world().send(std::span<const std::int32_t>(value), 0, {.tag = 6});
    else context.world().recv(std::span<std::int32_t>(value), 1, {.tag = 5});
    context.world().barrier();
  });
}

TEST(AReceiveFromAnySource, OfEveryRankIsADeadlock) {
  expect_deadlock(3, "from any rank, tag 5", [](Context& context) {
    std::vector<std::int32_t> value(1);
    context.world().recv(std::span<std::int32_t>(value), kAnySource, {.tag = 5});
  });
}

TEST(AReceiveFromAnySource, WaitsForWhoeverStillComputes) {
  SharedClock clock;
  run_ranks(3,
            [&](Context& context) {
              Communicator& world = context.world();
              std::vector<std::int32_t> value = {static_cast<std::int32_t>(world.rank())};
              if (world.rank() == 2) {
                for (int i = 0; i < 150; ++i) {
                  clock.sleep_for(10'000'000);
                  context.tick();
                }
                world.send(std::span<const std::int32_t>(value), 0, {.tag = 5});
              } else if (world.rank() == 0) {
                world.recv(std::span<std::int32_t>(value), kAnySource, {.tag = 5});
                EXPECT_EQ(value[0], 2);
              }
              world.barrier();
            },
            {.timeout_ns = 500'000'000, .clock = &clock});
}

TEST(AReceiveFromAnySource, WhoseSendersHaveAllLeftNamesOneOfThem) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes =
      try_ranks(3,
                [](Context& context) {
                  std::vector<std::int32_t> value(1);
                  if (context.rank() == 0) context.world().recv(std::span<std::int32_t>(value), kAnySource, {.tag = 5});
                },
                {.clock = &clock});
  EXPECT_EQ(outcomes[0].cause, Cause::exited) << describe(outcomes);
  EXPECT_NE(outcomes[0].message.find("closed its context in good order, but rank 0 waits for it in recv #1"), std::string::npos)
      << describe(outcomes);
  EXPECT_FALSE(outcomes[1].failed || outcomes[2].failed) << describe(outcomes);
}

// Rank 1 finds that it gets something else than it wants; rank 0, which waits for anyone, is told.
TEST(AReceiveFromAnySource, EndsWithTheFailureOfAnyRank) {
  const std::vector<RankOutcome> outcomes = try_ranks(3, [](Context& context) {
    std::vector<std::int32_t> value(context.rank() == 1 ? 2 : 1);
    const std::span<std::int32_t> buffer(value);
    if (context.rank() == 2) context.world().send(buffer, 1, {.tag = 5});
    context.world().recv(buffer, context.rank() == 1 ? 2 : kAnySource, {.tag = 5});
  });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::mismatch) << describe(outcomes);
    EXPECT_EQ(outcome.culprit, 1) << describe(outcomes);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::tagged_receives_test
