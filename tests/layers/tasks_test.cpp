// Lists of tasks, and how ways look ahead in them.
#include "layers/schedules/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace tsprun::detail::test::tasks_test {
namespace {

TEST(Tasks, OfATrainingStepRunOneMicroBatchAfterTheOther) {
  EXPECT_EQ(print(training_tasks(3, 2)),
            "forward   micro-batch 0   embedding\n"
            "forward   micro-batch 0   layers 0 to 2\n"
            "forward   micro-batch 0   head\n"
            "backward  micro-batch 0   head\n"
            "backward  micro-batch 0   layers 2 to 0\n"
            "backward  micro-batch 0   embedding\n"
            "forward   micro-batch 1   embedding\n"
            "forward   micro-batch 1   layers 0 to 2\n"
            "forward   micro-batch 1   head\n"
            "backward  micro-batch 1   head\n"
            "backward  micro-batch 1   layers 2 to 0\n"
            "backward  micro-batch 1   embedding\n"
            "reduce\n"
            "update\n");
  EXPECT_EQ(print(forward_tasks(1, false)), "forward   micro-batch 0   embedding\nforward   micro-batch 0   layers 0 to 0\n");
}

TEST(Visits, FollowTheTasks) {
  Visits visits(training_tasks(2, 2));
  ASSERT_NE(visits.upcoming(1), nullptr);
  EXPECT_EQ(*visits.upcoming(1), (Visit{0, false, 0, Sublayer::attention}));
  EXPECT_EQ(*visits.upcoming(3), (Visit{0, false, 1, Sublayer::attention}));
  EXPECT_EQ(*visits.upcoming(5), (Visit{0, true, 1, Sublayer::mlp}));
  EXPECT_EQ(*visits.upcoming(9), (Visit{1, false, 0, Sublayer::attention}));
  EXPECT_NE(visits.upcoming(16), nullptr);
  EXPECT_EQ(visits.upcoming(17), nullptr);
  EXPECT_EQ(visits.next_in_pass(), nullptr);  // none has begun
}

TEST(Visits, KnowWhereAPassEnds) {
  Visits visits(training_tasks(1, 2));
  for (const std::size_t micro_batch : {0U, 1U}) {
    EXPECT_EQ(visits.arrive({micro_batch, false, 0, Sublayer::attention}), (Visit{micro_batch, false, 0, Sublayer::attention}));
    ASSERT_NE(visits.next_in_pass(), nullptr);
    EXPECT_EQ(visits.next_in_pass()->sublayer, Sublayer::mlp);
    visits.arrive({micro_batch, false, 0, Sublayer::mlp});
    EXPECT_EQ(visits.next_in_pass(), nullptr);
    visits.arrive({micro_batch, true, 0, Sublayer::mlp});
    ASSERT_NE(visits.next_in_pass(), nullptr);
    EXPECT_EQ(visits.next_in_pass()->sublayer, Sublayer::attention);
    visits.arrive({micro_batch, true, 0, Sublayer::attention});
    EXPECT_EQ(visits.next_in_pass(), nullptr);
  }
  EXPECT_EQ(visits.upcoming(1), nullptr);
}

TEST(Visits, FindAPassAmongOthers) {
  TaskList tasks = training_tasks(2, 2);
  std::swap_ranges(tasks.begin() + 3, tasks.begin() + 6, tasks.begin() + 6);  // both forward, then both backward
  Visits visits(tasks);
  EXPECT_EQ(*visits.next_of(1, false), (Visit{1, false, 0, Sublayer::attention}));
  EXPECT_EQ(*visits.next_of(0, true), (Visit{0, true, 1, Sublayer::mlp}));
  visits.arrive({0, false, 0, Sublayer::attention});
  EXPECT_EQ(*visits.next_of(0, false), (Visit{0, false, 0, Sublayer::mlp}));
  EXPECT_EQ(visits.next_of(2, false), nullptr);
}

TEST(Visits, RefuseWhatTheListDoesntHave) {
  Visits visits(forward_tasks(1));
  EXPECT_THROW(visits.arrive({0, true, 0, Sublayer::mlp}), std::logic_error);
  EXPECT_THROW(visits.arrive({0, false, 1, Sublayer::attention}), std::logic_error);
  EXPECT_THROW(visits.arrive({1, false, 0, Sublayer::attention}), std::logic_error);  // another micro-batch's pass
  visits.arrive({0, false, 0, Sublayer::attention});
  EXPECT_THROW(visits.arrive({0, false, 0, Sublayer::attention}), std::logic_error);
  visits.arrive({0, false, 0, Sublayer::mlp});
  EXPECT_THROW(visits.arrive({0, true, 0, Sublayer::mlp}), std::logic_error);
}

}  // namespace
}  // namespace tsprun::detail::test::tasks_test
