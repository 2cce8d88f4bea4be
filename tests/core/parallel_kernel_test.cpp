// The pool that kernels run on, and tensor views.

#include "tests/core/kernel_support.h"
#include "tests/support/signal_mask.h"

#include <atomic>
#include <stdexcept>
#include <thread>

namespace tsprun::detail::test::parallel_kernel_test {
namespace {

TEST(Pool, RunsEveryTaskOnce) {
  for (const auto& [threads, idle] :
       {std::pair{1U, kernels::Idle::sleep}, {2U, kernels::Idle::sleep}, {4U, kernels::Idle::sleep}, {4U, kernels::Idle::spin}}) {
    const std::size_t count = threads;
    kernels::Pool pool(threads, idle);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> runs(17);
      std::atomic<bool> known{true};
      pool.run(runs.size(), [&](std::size_t task, std::size_t thread) {
        runs[task].fetch_add(1);
        if (thread >= count) known = false;
      });
      EXPECT_TRUE(known);
      for (const auto& each : runs) EXPECT_EQ(each.load(), 1);
    }
    pool.run(0, [](std::size_t, std::size_t) { FAIL(); });
  }
}

/// A task that other threads don't finish before the caller, thread 0, has run one: else they might do all, and nobody tick.
auto after_the_caller(std::atomic<bool>& caller_worked) {
  return [&caller_worked](std::size_t, std::size_t thread) {
    if (thread == 0) caller_worked = true;
    while (!caller_worked) std::this_thread::yield();
  };
}

// They are for the program's own threads.
TEST(Pool, ItsThreadsTakeNoSignalsOfTheProcess) {
  kernels::Pool pool(2);
  std::atomic<int> begun{0};
  std::atomic<bool> asked{false};
  std::atomic<bool> faults{true};
  pool.run(2, [&](std::size_t, std::size_t thread) {
    ++begun;
    while (begun != 2) std::this_thread::yield();
    if (thread == 0) return;
    asked = blocks(SIGTERM) && blocks(SIGINT);
    faults = blocks(SIGSEGV);
  });
  EXPECT_TRUE(asked);
  EXPECT_FALSE(faults);
  EXPECT_FALSE(blocks(SIGTERM));
}

TEST(Pool, TicksOnTheCallingThreadOnly) {
  kernels::Pool pool(3);
  std::atomic<bool> caller_worked{false};
  const auto task = after_the_caller(caller_worked);
  const std::thread::id caller = std::this_thread::get_id();
  int ticks = 0;
  pool.run(50, task, [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++ticks;
  });
  EXPECT_GE(ticks, 1);
}

TEST(Pool, ThrowsATasksExceptionAndStaysUsable) {
  kernels::Pool pool(3, kernels::Idle::spin);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.run(20,
                          [](std::size_t task, std::size_t) {
                            if (task == 7) throw std::runtime_error("seven");
                          }),
                 std::runtime_error);
  }
  std::atomic<int> runs{0};
  pool.run(20, [&](std::size_t, std::size_t) { runs.fetch_add(1); });
  EXPECT_EQ(runs.load(), 20);
}

TEST(Pool, ThrowsATicksException) {
  kernels::Pool pool(2);
  std::atomic<bool> caller_worked{false};
  const auto task = after_the_caller(caller_worked);
  const auto stop = [] { throw std::runtime_error("aborted"); };
  EXPECT_THROW(pool.run(20, task, stop), std::runtime_error);
}

TEST(Tensor, SlicesSplitsAndMergesAreViewsOfTheSameMemory) {
  std::vector<float> memory(2 * 3 * 8);
  const Tensor x(std::span<float>(memory), {2, 3, 8});
  EXPECT_TRUE(x.contiguous());
  EXPECT_EQ(x.describe(), "f32 [2, 3, 8]");
  const Tensor heads = x.split(2, 4);  // [2, 3, 2, 4]
  EXPECT_EQ(heads.describe(), "f32 [2, 3, 2, 4]");
  heads.select(0, 1).select(0, 2).select(0, 1).as<float>()[3] = 5;
  EXPECT_EQ(memory[1 * 24 + 2 * 8 + 7], 5);
  EXPECT_EQ(x.merged(0).describe(), "f32 [6, 8]");
  EXPECT_EQ(heads.merged(2).stride(1), x.stride(1));
  const Tensor middle = x.slice(1, 1, 1);
  EXPECT_FALSE(middle.contiguous());
  EXPECT_EQ(middle.merged(0).stride(0), 24U);
  EXPECT_EQ(x.transposed(0, 2).describe(), "f32 [8, 3, 2]");
  EXPECT_EQ(x.transposed(0, 2).stride(0), 1U);
}

TEST(Tensor, RefusesWhatTheShapeDoesntHave) {
  std::vector<float> memory(24);
  const Tensor x(std::span<float>(memory), {4, 6});
  EXPECT_THROW((void)x.slice(0, 3, 2), std::invalid_argument);
  EXPECT_THROW((void)x.slice(0, 5, 0), std::invalid_argument);
  EXPECT_THROW((void)x.size(2), std::invalid_argument);
  EXPECT_THROW((void)x.split(1, 4), std::invalid_argument);
  EXPECT_THROW((void)x.slice(1, 0, 3).merged(0), std::invalid_argument);
  EXPECT_THROW((void)x.as<double>(), std::invalid_argument);
  EXPECT_THROW(Tensor(std::span<float>(memory), {5, 5}), std::invalid_argument);
  EXPECT_THROW((void)x.slice(1, 0, 3).span<float>(), std::invalid_argument);
}

}  // namespace
}  // namespace tsprun::detail::test::parallel_kernel_test
