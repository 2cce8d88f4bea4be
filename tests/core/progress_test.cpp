// Several threads of a rank take turns in its engine, and operations move on while none of them waits.
#include "tsprun/progress.h"
#include "tests/support/patience.h"
#include "tests/support/run_ranks.h"
#include "tests/support/signal_mask.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::progress_test {

using namespace std::chrono_literals;

/// Sums one integer over the world.
Posted sum(Progress& progress, std::int64_t& value, Stream stream = Stream::control, Progress::Done done = {}) {
  return progress.post(
      [&value, stream](Context& rank) {
        const Buffer buffer(&value, 1, DType::i64);
        return rank.world().post_all_reduce(buffer, buffer, Reduction::sum, {.stream = stream});
      },
      std::move(done));
}

TEST(Progress, AnOperationMovesOnWhileNobodyWaits) {
  run_ranks(3, [](Context& context) {
    Progress progress(context);
    std::vector<std::int64_t> values(1 << 20, context.rank());
    std::atomic<int> told = 0;
    Posted posted = progress.post(
        [&](Context& rank) {
          const Buffer buffer{std::span(values)};
          return rank.world().post_all_reduce(buffer, buffer, Reduction::sum);
        },
        [&](const std::exception_ptr& failure) { told += failure ? 100 : 1; });
    while (!posted.over()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(told, 1);
    EXPECT_EQ(values.front(), 3);
    EXPECT_EQ(values.back(), 3);
    EXPECT_TRUE(posted.wait());
  });
}

TEST(Progress, TheLongestLimitOfAWaitIsNone) {
  run_ranks(2, [](Context& context) {
    Progress progress(context);
    if (context.rank() == 1) std::this_thread::sleep_for(50ms);
    std::int64_t value = context.rank();
    EXPECT_TRUE(sum(progress, value).wait(std::chrono::milliseconds::max()));
    EXPECT_EQ(value, 1);
  });
}

// They are for the program's own threads.
TEST(Progress, ItsThreadTakesNoSignalsOfTheProcess) {
  run_ranks(2, [](Context& context) {
    Progress progress(context);
    EXPECT_FALSE(blocks(SIGTERM));
    if (context.rank() == 1) std::this_thread::sleep_for(50ms);
    std::int64_t value = 1;
    std::thread::id by;
    bool asked = false;
    bool faults = true;
    Posted posted = sum(progress, value, Stream::control, [&](const std::exception_ptr&) {
      by = std::this_thread::get_id();
      asked = blocks(SIGTERM) && blocks(SIGINT);
      faults = blocks(SIGSEGV);
    });
    while (!posted.over()) std::this_thread::sleep_for(1ms);
    if (by == std::this_thread::get_id()) return;  // it came last, and was done at once
    EXPECT_TRUE(asked);
    EXPECT_FALSE(faults);
  });
}

TEST(Progress, ThreadsWaitForDifferentStreamsAtOnce) {
  constexpr int kRounds = 200;
  run_ranks(2, [](Context& context) {
    Progress progress(context);
    const auto work = [&](Stream stream) {
      for (std::int64_t round = 0; round < kRounds; ++round) {
        std::int64_t value = context.rank() + round;
        sum(progress, value, stream).wait();
        ASSERT_EQ(value, 1 + 2 * round);
      }
    };
    std::thread other(work, Stream::weights);
    work(Stream::kv);
    other.join();
  });
}

TEST(Progress, DoneMayPostTheNextOperation) {
  run_ranks(2, [](Context& context) {
    Progress progress(context);
    std::int64_t first = context.rank();
    std::int64_t second = 10 * context.rank();
    std::atomic<bool> all = false;
    sum(progress, first, Stream::control, [&](const std::exception_ptr&) {
      sum(progress, second, Stream::control, [&](const std::exception_ptr&) { all = true; });
    });
    while (!all) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 10);
  });
}

/// Whether the thread that waits for an operation or the progress thread is in its `done`, another thread's wait drives
/// meanwhile.
TEST(Progress, ADoneThatTakesLongStopsNoOtherThread) {
  for (const bool wait_at_once : {true, false}) {
    std::atomic<bool> posted = false;
    run_ranks(2, [&](Context& context) {
      Progress progress(context);
      std::int64_t first = context.rank();
      std::int64_t second = 10 * context.rank();
      std::atomic<bool> in_done = false;
      std::atomic<bool> second_over = false;
      if (context.rank() == 1) {
        while (!posted) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(50ms);  // so that rank 0 waits before an operation is complete
        sum(progress, first).wait();
        std::this_thread::sleep_for(100ms);
        sum(progress, second, Stream::kv).wait();
        return;
      }
      Posted slow = sum(progress, first, Stream::control, [&](const std::exception_ptr&) {
        in_done = true;
        for (int i = 0; i < 5000 && !second_over; ++i) std::this_thread::sleep_for(1ms);
        EXPECT_TRUE(second_over);
      });
      posted = true;
      std::thread waiter([&] {
        while (!wait_at_once && !in_done) std::this_thread::sleep_for(1ms);
        slow.wait();
      });
      while (!in_done) std::this_thread::sleep_for(1ms);
      if (!wait_at_once) std::this_thread::sleep_for(20ms);  // until the other thread waits
      sum(progress, second, Stream::kv).wait();
      second_over = true;
      waiter.join();
      EXPECT_EQ(second, 10);
    });
  }
}

TEST(Progress, ARankThatComputesLongerThanTheDeadlineIsAlive) {
  run_ranks(2,
            [](Context& context) {
              Progress progress(context);
              if (context.rank() == 1) std::this_thread::sleep_for(4s);
              std::int64_t value = 1;
              sum(progress, value).wait();
              EXPECT_EQ(value, 2);
            },
            {.timeout_ns = 2'000'000'000});
}

TEST(Progress, AWaitEndsAtItsLimitAndMayBeRepeated) {
  std::atomic<bool> limit_reached = false;
  run_ranks(2, [&](Context& context) {
    Progress progress(context);
    std::int64_t value = 1;
    if (context.rank() == 1) {
      EXPECT_TRUE(until(30, [&] { return limit_reached.load(); }));
    }
    Posted posted = sum(progress, value);
    if (context.rank() == 0) {
      EXPECT_FALSE(posted.wait(20ms));
      limit_reached = true;
    }
    EXPECT_TRUE(posted.wait());
    EXPECT_EQ(value, 2);
  });
}

TEST(Progress, AFailureReachesEveryPendingOperation) {
  const std::vector<RankOutcome> outcomes = try_ranks(2, [](Context& context) {
    std::int64_t a = 1;
    std::int64_t b = 1;
    std::atomic<int> failures = 0;
    const auto count = [&](const std::exception_ptr& failure) { failures += failure ? 1 : 0; };
    Progress progress(context);  // tells `count` until it ends
    // Both streams are needed on both ranks, but rank 1 calls something else on one of them.
    Posted one = sum(progress, a, Stream::kv, count);
    Posted other = context.rank() == 0
                       ? sum(progress, b, Stream::weights, count)
                       : progress.post(
                             [&](Context& rank) {
                               return rank.world().post_broadcast(Buffer(&b, 1, DType::i64), 0, {.stream = Stream::weights});
                             },
                             count);
    other.wait();
  });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.failed);
    EXPECT_EQ(outcome.cause, Cause::mismatch) << outcome.message;
  }
}

/// Looks for the end of an operation for 20 s, as a program does that waits for something else.
void look_for_end(const std::function<bool()>& is_over) {
  for (int i = 0; i < 4000 && !is_over(); ++i) std::this_thread::sleep_for(5ms);
}

TEST(Progress, ARankThatIsGoneIsNamedThoughNobodyWaits) {
  for (const bool by_test : {false, true}) {
    const std::vector<RankOutcome> outcomes = try_ranks(3, [&](Context& context) {
      if (context.rank() == 2) return;
      if (by_test) {
        Work work = context.world().post_barrier();
        look_for_end([&] { return work.test(); });
      } else {
        Progress progress(context);
        std::int64_t value = 1;
        Posted posted = sum(progress, value);
        look_for_end([&] { return posted.over(); });
        EXPECT_TRUE(posted.over());
        posted.wait();
      }
    });
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(outcomes[static_cast<std::size_t>(rank)].failed) << by_test;
      EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].culprit, 2) << by_test << describe(outcomes);
    }
  }
}

TEST(Progress, ASilentRankIsNamedThoughNobodyWaits) {
  const std::vector<RankOutcome> outcomes = try_ranks(2,
                                                      [](Context& context) {
                                                        if (context.rank() == 1) {
                                                          // Silent until it is named.
                                                          until(30, [&] { return board_of(context).aborted(); });
                                                          context.tick();
                                                          return;
                                                        }
                                                        Progress progress(context);
                                                        std::int64_t value = 1;
                                                        Posted posted = sum(progress, value);
                                                        look_for_end([&] { return posted.over(); });
                                                        posted.wait();
                                                      },
                                                      {.timeout_ns = 500'000'000});
  EXPECT_EQ(outcomes[0].cause, Cause::stalled) << describe(outcomes);
  EXPECT_EQ(outcomes[0].culprit, 1) << describe(outcomes);
  EXPECT_EQ(outcomes[1].culprit, 1) << describe(outcomes);
}

/// A rank that is always the last to come never sleeps, and so gives no other sign of life than what it completes.
TEST(Progress, ARankThatWorksIsNoSilentOne) {
  run_ranks(2,
            [](Context& context) {
              std::int64_t value = 1;
              constexpr int kRounds = 80;
              if (context.rank() == 1) {
                for (int i = 0; i < kRounds; ++i) {
                  std::this_thread::sleep_for(50ms);
                  const Buffer buffer(&value, 1, DType::i64);
                  context.world().all_reduce(buffer, buffer, Reduction::sum);
                }
                return;
              }
              Progress progress(context);
              for (int i = 0; i < kRounds; ++i) {
                const Posted posted = sum(progress, value);
                look_for_end([&] { return posted.over(); });
                EXPECT_TRUE(posted.over());
              }
            },
            {.timeout_ns = 2'000'000'000});
}

TEST(Progress, AnOperationThatNobodyWaitsForEndsTheJobAtItsLimit) {
  const std::vector<RankOutcome> outcomes = try_ranks(2, [](Context& context) {
    Progress progress(context);
    if (context.rank() == 1) {
      // Alive until the failure reaches it, but it never calls.
      until(30, [&] {
        progress.use([](Context& rank) { rank.tick(); });
        return false;
      });
      return;
    }
    std::int64_t value = 1;
    const Posted posted = progress.post(
        [&](Context& rank) {
          const Buffer buffer(&value, 1, DType::i64);
          return rank.world().post_all_reduce(buffer, buffer, Reduction::sum);
        },
        {}, 400ms);
    look_for_end([&] { return posted.over(); });
    EXPECT_TRUE(posted.over());
    progress.use([](Context& rank) { rank.tick(); });
  });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::stalled) << describe(outcomes);
    EXPECT_EQ(outcome.culprit, 1) << describe(outcomes);
    EXPECT_NE(outcome.message.find(
                  "rank 0: all_reduce (operation 1 of its group) isn't over within 0.4 s of its call: it waits for rank 1"),
              std::string::npos)
        << describe(outcomes);
  }
}

/// A failure that a call has told ends a pending receive, too, whether somebody waits for it or not.
TEST(Progress, AFailureThatACallToldEndsAPendingReceive) {
  for (const bool waits : {false, true}) {
    const std::vector<RankOutcome> outcomes = try_ranks(2, [&](Context& context) {
      if (context.rank() == 1) {
        std::this_thread::sleep_for(50ms);
        context.fail("as planned");
      }
      Progress progress(context);
      std::int64_t value = 0;
      std::atomic<int> told = 0;
      const Buffer buffer(&value, 1, DType::i64);
      Posted posted = progress.post([&](Context& rank) { return rank.world().post_recv(buffer, 1, {.tag = 3}); },
                                    [&](const std::exception_ptr& failure) { told = failure ? 2 : 1; });
      for (bool failed = false; !failed;) {
        try {
          progress.use([](Context& rank) { rank.tick(); });
        } catch (const Error&) {
          failed = true;
        }
      }
      if (!waits) look_for_end([&] { return posted.over(); });
      EXPECT_THROW(posted.wait(), Error);
      EXPECT_TRUE(posted.over());
      EXPECT_EQ(told, 2);
    });
    EXPECT_TRUE(outcomes[1].failed) << describe(outcomes);
  }
}

TEST(Progress, WhatIsPendingAtTheEndIsOver) {
  run_ranks(2, [](Context& context) {
    std::int64_t value = 1;
    std::atomic<int> interrupted = 0;
    if (context.rank() == 0) {
      Progress progress(context);
      sum(progress, value, Stream::control, [&](const std::exception_ptr& failure) {
        try {
          if (failure) std::rethrow_exception(failure);
        } catch (const Error& error) {
          interrupted += error.cause() == Cause::interrupted ? 1 : 0;
        }
      });
    } else {
      interrupted = 1;
    }
    EXPECT_EQ(interrupted, 1);
  });
}

#ifndef TSP_SANITIZE_THREAD
TEST(Progress, AForkedChildIsRefusedAndDisturbsNobody) {
  run_ranks(1, [](Context& context) {
    Progress progress(context);
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 1;
      try {
        progress.use([](Context&) {});
      } catch (const Error& error) {
        code = error.cause() == Cause::refused ? 0 : 2;
      }
      ::_exit(code);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    std::int64_t value = 7;
    sum(progress, value).wait();
    EXPECT_EQ(value, 7);
  });
}
#endif

TEST(Progress, AThreadThatHasTheContextIsRefusedItInsteadOfWaitingForItself) {
  run_ranks(2, [](Context& context) {
    Progress progress(context);
    std::int64_t value = context.rank();
    Posted outer = sum(progress, value);
    progress.use([&](Context& rank) {
      EXPECT_THROW(progress.use([](Context&) {}), Error);
      EXPECT_THROW(sum(progress, value), Error);
      if (!outer.over()) {
        EXPECT_THROW(outer.wait(), Error);
      }
      EXPECT_EQ(rank.size(), 2);
    });
    EXPECT_THROW(progress.use([&](Context&) { progress.use([](Context&) {}); }), Error);
    EXPECT_TRUE(outer.wait());
    EXPECT_EQ(value, 1);
    // What a call threw leaves nothing behind, and another thread has its turn meanwhile.
    std::thread([&] { progress.use([](Context&) {}); }).join();
    value = context.rank();
    EXPECT_TRUE(sum(progress, value).wait());
    EXPECT_EQ(value, 1);
  });
}

}  // namespace tsprun::detail::test::progress_test
