// Tasks and the memory of their frames: what co_await waits for, what an error or the end of a job does to a task that waits, and
// that operations allocate nothing once their frames are there.
#include "core/streams/task.h"
#include "core/collectives/communicator_state.h"
#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tsprun::detail::test::task_test {

#if defined(__GNUC__) && !defined(__clang__)
// Without optimisation g++ 12 takes a template's operator new of a promise for the global one.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

/// Frame pool of these tests' tasks.
struct Ground {
  FramePool pool;
  std::string log;
  FramePool& frames() { return pool; }
};

/// A condition that is true after a number of polls.
struct Countdown {
  Ground& ground;
  char name;
  int polls;
  bool poll() {
    ground.log += name;
    return --polls < 0;
  }
};

struct Noted {
  Ground& ground;
  ~Noted() { ground.log += '~'; }
};

static Task wait_for_both(Ground& ground) {
  const Noted noted{ground};
  Countdown a{ground, 'a', 2};
  Countdown b{ground, 'b', 1};
  co_await all_of(a, b);
  ground.log += '|';
  co_await NextTurn();
  ground.log += 'c';
}

static Task wait_for_task(Ground& ground) {
  co_await wait_for_both(ground);
  ground.log += '.';
}

static Task fail_late(Ground& ground) {
  const Noted noted{ground};
  co_await NextTurn();
  throw std::runtime_error("late");
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace {

TEST(Task, PollsAPendingConditionInsteadOfResuming) {
  Ground ground;
  Task task = wait_for_both(ground);
  EXPECT_EQ(ground.log, "") << "a task begins at its first poll";
  EXPECT_FALSE(task.poll());
  EXPECT_FALSE(task.poll());
  EXPECT_EQ(ground.log, "abab");
  EXPECT_FALSE(task.poll()) << "it waits for its next turn";
  EXPECT_EQ(ground.log, "ababa|") << "what is true isn't polled again";
  EXPECT_TRUE(task.poll());
  EXPECT_EQ(ground.log, "ababa|c~");
}

TEST(Task, WaitsForAnotherTask) {
  Ground ground;
  Task task = wait_for_task(ground);
  int polls = 1;
  while (!task.poll()) ++polls;
  EXPECT_EQ(polls, 4);
  EXPECT_EQ(ground.log, "ababa|c~.");
}

TEST(Task, DestroysItsVariablesIfItIsDestroyedHalfWay) {
  Ground ground;
  {
    Task task = wait_for_task(ground);
    EXPECT_FALSE(task.poll());
  }
  EXPECT_EQ(ground.log, "ab~");
  const std::uint64_t frames = ground.pool.allocated();
  EXPECT_GE(frames, 1U);
  EXPECT_LE(frames, 2U) << "a compiler may put the inner frame into the outer one";
  // The frames are free again.
  Task first = wait_for_task(ground);
  EXPECT_FALSE(first.poll());
  EXPECT_EQ(ground.pool.allocated(), frames);
}

TEST(Task, ThrowsWhatItThrewToItsPoller) {
  Ground ground;
  Task task = fail_late(ground);
  EXPECT_FALSE(task.poll());
  EXPECT_THROW(task.poll(), std::runtime_error);
  EXPECT_EQ(ground.log, "~");
}

TEST(FramePool, KeepsBlocksBySize) {
  FramePool pool;
  void* small = pool.take(100);
  void* large = pool.take(100'000);
  EXPECT_NE(small, nullptr);
  FramePool::give_back(small);
  EXPECT_EQ(pool.take(120), small);
  FramePool::give_back(small);
  FramePool::give_back(large);  // too large to be kept: the sanitizer would see it leak
  EXPECT_EQ(pool.allocated(), 2U);
}

// As many blocks are allocated as operations are under way at once, however many there are: here at most two, each with its
// coroutine and the coroutine that this waits for.
TEST(FramePool, OperationsAllocateNothingInTheSteadyState) {
  for (const Op op : kCallable) {
    for (const Algorithm algorithm : algorithms_of(op)) {
      run_ranks(2, [&](Context& context) {
        Communicator& world = context.world();
        if (!can_run(world, op, algorithm)) return;
        for (int i = 0; i < 50; ++i) {
          Call call;
          call.op = op;
          call.counts.assign(2, 100);
          call.posted = i % 2 == 0;
          call.options.algorithm = algorithm;
          run(context, world, call);
        }
        const std::uint64_t allocated = CommunicatorState::of(world).group.engine->frames().allocated();
        EXPECT_GT(allocated, 0U);
        EXPECT_LE(allocated, 6U) << name(op) << ", " << name(algorithm);
      });
    }
  }
}

// A rank that leaves in the middle takes the others' operations with it, those that wait at any co_await: their frames go back to
// the pool with the engine, or the sanitizer sees them leak.
TEST(Task, OfAnOperationEndsWithTheJob) {
  for (const Algorithm algorithm : algorithms_of(Op::all_reduce)) {
    SharedClock clock;
    const std::vector<RankOutcome> outcomes =
        try_ranks(3,
                  [&](Context& context) {
                    Communicator& world = context.world();
                    std::vector<float> data(300'000);
                    if (context.rank() == 2) throw Error(Cause::refused, "left");
                    Work work = world.post_all_reduce(std::span<const float>(data), std::span<float>(data), Reduction::sum,
                                                      {.algorithm = algorithm});
                    work.wait();
                  },
                  {.timeout_ns = 1'000'000'000, .clock = &clock});
    for (const RankOutcome& outcome : outcomes) EXPECT_TRUE(outcome.failed) << name(algorithm);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::task_test
