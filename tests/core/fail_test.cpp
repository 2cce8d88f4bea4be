// A program that ends its job itself: all ranks get its words.

#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

namespace tsprun::detail::test::fail_test {
namespace {

class Fail : public testing::TestWithParam<RankOptions> {};

TEST_P(Fail, AllRanksGetTheWordsOfTheFirst) {
  const std::vector<RankOutcome> outcomes = try_ranks(
      4,
      [](Context& context) {
        context.world().barrier();
        if (context.rank() == 2) context.fail("the loss isn't finite: 100 % of it");
        context.world().barrier();
      },
      GetParam());
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::failed) << describe(outcomes);
    EXPECT_EQ(outcome.culprit, 2) << describe(outcomes);
    EXPECT_EQ(outcome.message, "the loss isn't finite: 100 % of it");
    EXPECT_EQ(outcome.op, "");
  }
}

TEST_P(Fail, LaterReasonsDontReplaceTheFirst) {
  std::atomic<bool> first_is_over{false};
  const std::vector<RankOutcome> outcomes = try_ranks(
      2,
      [&](Context& context) {
        if (context.rank() == 0) {
          try {
            context.fail("one");
          } catch (const Error&) {
            first_is_over.store(true);
            throw;
          }
        }
        while (!first_is_over.load()) {
        }
        // The news may still be on its way between nodes, so the second reason waits for it.
        try {
          for (;;) context.tick();
        } catch (const Error&) {
        }
        context.fail("two");
      },
      GetParam());
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.message, "one");
    EXPECT_EQ(outcome.culprit, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fail, testing::Values(RankOptions{}, RankOptions{.share = false}),
                         [](const auto& test) { return test.param.share ? "shm" : "tcp"; });

}  // namespace
}  // namespace tsprun::detail::test::fail_test
