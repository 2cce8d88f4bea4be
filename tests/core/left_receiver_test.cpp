// Messages to a rank that has left the job: nobody will ever take them, so they must not seem sent.
#include "tests/support/run_ranks.h"
#include "tsprun/communicator.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tsprun::detail::test::left_receiver_test {
namespace {

/// Sends `value` to rank 1 in some way.
using Send = std::function<void(Communicator& world, std::vector<std::int32_t>& value)>;

/// Runs two ranks: rank 0 sends when rank 1 has left. Returns how they ended.
std::vector<RankOutcome> send_to_the_left(const Send& send, std::size_t count = 1) {
  SharedClock clock;
  return try_ranks(2,
                   [&](Context& context) {
                     if (context.rank() == 1) return;
                     while (board_of(context).life(1) != Life::finished) clock.sleep_for(1'000'000);
                     std::vector<std::int32_t> value(count);
                     send(context.world(), value);
                   },
                   {.clock = &clock});
}

void expect_blame(const std::vector<RankOutcome>& outcomes, const std::string& operation) {
  EXPECT_EQ(outcomes[0].cause, Cause::exited) << describe(outcomes);
  EXPECT_EQ(outcomes[0].culprit, 1) << describe(outcomes);
  EXPECT_NE(outcomes[0].message.find("rank 1 closed its context in good order, but rank 0 waits for it in " + operation + " #1"),
            std::string::npos)
      << describe(outcomes);
  EXPECT_FALSE(outcomes[1].failed) << describe(outcomes);
}

TEST(AMessageToWhoeverHasLeft, FailsAsAReceiveFromItDoes) {
  expect_blame(send_to_the_left([](Communicator& world, auto& value) { world.recv(std::span<std::int32_t>(value), 1); }), "recv");
  for (const std::size_t count : {std::size_t{1}, std::size_t{4'000}, std::size_t{1'000'000}}) {
    const auto send = [](Communicator& world, auto& value) { world.send(std::span<const std::int32_t>(value), 1); };
    expect_blame(send_to_the_left(send, count), "send");
  }
}

TEST(AMessageToWhoeverHasLeft, FailsWhenPostedToo) {
  expect_blame(
      send_to_the_left([](Communicator& world, auto& value) { world.post_send(std::span<const std::int32_t>(value), 1).wait(); }),
      "send");
}

TEST(AMessageToWhoeverHasLeft, FailsWithATag) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
    const auto send = [](Communicator& world, auto& value) { world.send(std::span<const std::int32_t>(value), 1, {.tag = 5}); };
    expect_blame(send_to_the_left(send, count), "send");
  }
}

// Its receiver leaves at once, often before the sender looks again.
TEST(AMessageToWhoeverLeavesNext, Arrives) {
  for (const std::int32_t tag : {kNoTag, 5}) {
    for (int round = 0; round < 50; ++round) {
      run_ranks(2, [tag](Context& context) {
        std::vector<std::int32_t> value = {context.rank()};
        if (context.rank() == 0) {
          context.world().post_send(std::span<const std::int32_t>(value), 1, {.tag = tag}).wait();
        } else {
          context.world().recv(std::span<std::int32_t>(value), 0, {.tag = tag});
          EXPECT_EQ(value[0], 0);
        }
      });
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::left_receiver_test
