// The one rule of waiting: a wait ends with success, or with an error that names a cause; and who works is not taken for dead.

#include "core/trace/recorder.h"
#include "tests/support/run_ranks.h"
#include "transport/posix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test::collectives_waits_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

RankOptions one_second(SharedClock& clock) { return {.timeout_ns = kSecond, .clock = &clock}; }

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// Computes for that long, giving signs of life.
void compute(Context& context, const SharedClock& clock, std::uint64_t nanoseconds) {
  const std::uint64_t end = clock.now_ns() + nanoseconds;
  while (clock.now_ns() < end) {
    context.tick();
    clock.sleep_for(kSecond / 100);
  }
}

TEST(Deadlock, OfTwoRanksThatReceiveFromEachOtherIsNamed) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      2,
      [](Context& context) {
        std::vector<float> data(10);
        context.world().recv(std::span<float>(data), 1 - context.rank());
      },
      one_second(clock));
  EXPECT_GE(clock.seconds(), 1.0);
  EXPECT_LT(clock.seconds(), 1.5);
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::deadlock) << describe(outcomes);
    EXPECT_NE(outcome.message.find("recv"), std::string::npos) << describe(outcomes);
  }
}

TEST(Deadlock, OfACircleOfThreeIsNamed) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      4,
      [](Context& context) {
        if (context.rank() == 3) return;
        std::vector<float> data(10);
        context.world().recv(std::span<float>(data), (context.rank() + 1) % 3);
      },
      one_second(clock));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].cause, Cause::deadlock) << describe(outcomes);
  }
}

TEST(Deadlock, ReachesThoseWhoWaitForTheCircle) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      3,
      [](Context& context) {
        std::vector<float> data(10);
        context.world().recv(std::span<float>(data), context.rank() == 2 ? 0 : 1 - context.rank());
      },
      one_second(clock));
  for (const RankOutcome& outcome : outcomes) EXPECT_EQ(outcome.cause, Cause::deadlock) << describe(outcomes);
}

TEST(SignsOfLife, ARankThatTicksIsNotTakenForDead) {
  SharedClock clock;
  run_ranks(
      3,
      [&](Context& context) {
        if (context.rank() == 0) compute(context, clock, 30 * kSecond);
        context.world().barrier();
      },
      one_second(clock));
  EXPECT_GE(clock.seconds(), 30);
}

TEST(SignsOfLife, AChainOfWaitsHangsOnItsRoot) {
  // Rank 3 waits for 2, that for 1, that for 0, which computes for three deadlines.
  SharedClock clock;
  run_ranks(
      4,
      [&](Context& context) {
        std::vector<float> data(10, context.rank() == 0 ? 7.0F : 0.0F);
        if (context.rank() == 0) compute(context, clock, 3 * kSecond);
        else context.world().recv(std::span<float>(data), context.rank() - 1);
        EXPECT_EQ(data, std::vector<float>(10, 7.0F));
        if (context.rank() < 3) context.world().send(std::span<const float>(data), context.rank() + 1);
      },
      one_second(clock));
  EXPECT_GE(clock.seconds(), 3);
}

TEST(SignsOfLife, OperationsOfOthersAreSigns) {
  // Ranks 1 and 2 talk for three deadlines while rank 0 waits for them.
  SharedClock clock;
  run_ranks(
      3,
      [&](Context& context) {
        if (context.rank() != 0) {
          const std::vector<int> pair = {1, 2};
          Communicator group = context.world().subgroup(pair);
          const std::uint64_t end = clock.now_ns() + 3 * kSecond;
          // Rank 1 decides when it is over.
          std::vector<float> go_on(1, 1.0F);
          while (go_on[0] != 0.0F) {
            if (group.rank() == 0) go_on[0] = clock.now_ns() < end ? 1.0F : 0.0F;
            group.broadcast(std::span<float>(go_on), 0);
            clock.sleep_for(kSecond / 100);
          }
        }
        context.world().barrier();
      },
      one_second(clock));
  EXPECT_GE(clock.seconds(), 3);
}

/// Returns what a rank waits for in such an operation, as soon as it is that segment.
Activity wait_of(const Context& context, int rank, Op op, std::uint32_t segment) {
  for (int tries = 0; tries < 5000; ++tries) {
    const std::optional<Activity> seen = board_of(context).activity(rank);
    if (seen && seen->op == op && seen->waiting_for >= 0 && seen->segment == segment) return *seen;
    sleep_ms(1);
  }
  throw std::runtime_error("the rank doesn't wait for that segment");
}

// The root's first step sends one segment, and its next comes when the test says so.
TEST(FlightBoard, SaysWhichSegmentIsMissing) {
  run_ranks(2, [](Context& context) {
    std::vector<float> data(std::size_t{3} << 18, 1.0F);
    if (context.rank() == 1) {
      context.world().broadcast(std::span<float>(data), 0, {.algorithm = Algorithm::ring});
    } else {
      Work work = context.world().post_broadcast(std::span<float>(data), 0, {.algorithm = Algorithm::ring});
      const Activity seen = wait_of(context, 1, Op::broadcast, 2);
      EXPECT_EQ(seen.waiting_for, 0);
      EXPECT_NE(seen.describe(posix::now_ns()).find("waiting for segment 2 of rank 0"), std::string::npos) << seen.describe(0);
      work.wait();
      EXPECT_EQ(wait_of(context, 1, Op::barrier, 0).waiting_for, 0) << "a barrier has no segments";
    }
    context.world().barrier();
  });
}

TEST(Stall, OfARankWithoutSignsOfLifeIsNamed) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      3,
      [&](Context& context) {
        if (context.rank() == 1) clock.sleep_for(3 * kSecond);
        context.world().barrier();
      },
      one_second(clock));
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::stalled) << describe(outcomes);
    EXPECT_EQ(outcome.culprit, 1) << describe(outcomes);
    EXPECT_NE(outcome.message.find("gave no sign of life for 1.0 s"), std::string::npos) << describe(outcomes);
  }
}

TEST(Stall, IsBlamedOnTheRootOfTheChain) {
  // 2 waits for 1, which waits for 0, which sleeps: 0 is to blame, though 2 waits for 1.
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      3,
      [&](Context& context) {
        std::vector<float> data(10);
        if (context.rank() == 0) clock.sleep_for(3 * kSecond);
        else context.world().recv(std::span<float>(data), context.rank() - 1);
      },
      one_second(clock));
  for (int rank : {1, 2}) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].cause, Cause::stalled) << describe(outcomes);
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].culprit, 0) << describe(outcomes);
  }
}

TEST(AFinishedRank, EndsTheWaitsForItWithoutWaitingForTheDeadline) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes = try_ranks(
      3,
      [](Context& context) {
        if (context.rank() == 1) return;
        context.world().barrier();
      },
      RankOptions{.timeout_ns = 20 * kSecond, .clock = &clock});
  EXPECT_LT(clock.seconds(), 1.0);
  for (int rank : {0, 2}) {
    EXPECT_TRUE(outcomes[static_cast<std::size_t>(rank)].failed) << describe(outcomes);
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].culprit, 1) << describe(outcomes);
    EXPECT_NE(outcomes[static_cast<std::size_t>(rank)].cause, Cause::none) << describe(outcomes);
  }
}

// A rank may end while others have still to read what it sent.
TEST(AFinishedRank, StillDeliversWhatItHadSent) {
  for (std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{500'000}}) {
    run_ranks(3, [&](Context& context) {
      std::vector<float> data(count, context.rank() == 0 ? 7.0F : 0.0F);
      if (context.rank() != 0) sleep_ms(100);
      context.world().broadcast(std::span<float>(data), 0);
      for (float value : data) ASSERT_EQ(value, 7.0F);
    });
  }
}

TEST(Refusals, ComeBeforeAnythingMoves) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    std::vector<float> data(8);
    const std::span<float> all(data);
    auto refuses = [](const char* what, const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << what << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.cause(), Cause::refused) << what << ": " << error.what();
      }
    };
    refuses("a root beyond the group", [&] { world.broadcast(all, 2); });
    refuses("a negative root", [&] { world.broadcast(all, -1); });
    refuses("a root beyond the group", [&] { world.reduce(all, all, Reduction::sum, 2); });
    refuses("sending to oneself", [&] { world.send(all, context.rank()); });
    refuses("receiving from oneself", [&] { world.recv(all, context.rank()); });
    refuses("sending beyond the group", [&] { world.send(all, 2); });
    refuses("receiving from a negative rank", [&] { world.recv(all, -1); });
    refuses("a gathered buffer of another size", [&] { world.all_gather(all.first(3), all); });
    refuses("a scattered buffer of another size", [&] { world.reduce_scatter(all, all.first(3), Reduction::sum); });
    refuses("all_reduce of different counts", [&] { world.all_reduce(all.first(3), all.last(4), Reduction::sum); });
    refuses("two dtypes", [&] {
      std::vector<double> wide(8);
      world.all_reduce(ConstBuffer(std::span<const double>(wide)), Buffer(all), Reduction::sum);
    });
    refuses("a sum of bytes", [&] {
      std::vector<std::byte> bytes(8);
      world.all_reduce(Buffer(std::span<std::byte>(bytes)), Reduction::sum);
    });
    refuses("an all_to_all that doesn't divide", [&] { world.all_to_all(all.first(3), all.last(3)); });
    refuses("an all_to_all in place", [&] { world.all_to_all(all, all); });
    refuses("partial overlap in all_reduce", [&] { world.all_reduce(all.first(4), all.subspan(1, 4), Reduction::sum); });
    refuses("partial overlap in all_gather", [&] { world.all_gather(all.subspan(1, 4), all); });
    refuses("too few counts", [&] {
      const std::vector<std::size_t> counts = {8};
      world.all_gather_v(all, all, counts);
    });
    refuses("counts that don't add up", [&] {
      const std::vector<std::size_t> counts = {4, 5};
      std::vector<float> send(counts[static_cast<std::size_t>(context.rank())]);
      world.all_gather_v(std::span<const float>(send), all, counts);
    });
    refuses("counts whose sum overflows", [&] {
      const std::vector<std::size_t> counts = {~std::size_t{0} - 3, 12};
      world.all_gather_v(all.first(context.rank() == 0 ? 0 : 8), all, counts);
    });
    refuses("one_shot for an operation that has none", [&] {
      CallOptions options;
      options.algorithm = Algorithm::one_shot;
      world.all_gather(std::span<const float>(data).first(4), Buffer(all), options);
    });
    // None of this broke anything.
    std::fill(data.begin(), data.end(), 1.0F);
    world.all_reduce(Buffer(all), Reduction::sum);
    for (float value : data) EXPECT_EQ(value, 2.0F);
  });
}

TEST(Refusals, AHeapThatIsFullSaysSo) {
  run_ranks(
      1,
      [](Context& context) {
        try {
          context.allocate(std::size_t{64} << 20, "a large tensor");
          ADD_FAILURE() << "more was given than there is";
        } catch (const Error& error) {
          EXPECT_EQ(error.cause(), Cause::out_of_memory);
          EXPECT_NE(std::string(error.what()).find("a large tensor"), std::string::npos) << error.what();
        }
      },
      RankOptions{.heap_bytes = std::size_t{32} << 20});
}

// Blocking calls wait inside the communicator, posted operations in Work::wait(): a trace has both, with the rank and operation
// that were waited for.
TEST(TracedWaits, OfBlockingCallsAndOfPostedOnesSayForWhom) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    TraceRecorder trace;
    engine_of(context).observe(&trace);
    std::vector<float> values(10, 1.0F);
    // Rank 1 comes when rank 0 is seen to wait for it.
    const auto come_late = [&](Op op) {
      if (context.rank() == 1) wait_of(context, 0, op, 0);
    };
    come_late(Op::barrier);
    world.barrier();
    come_late(Op::all_reduce);
    world.all_reduce(std::span(values), Reduction::sum);
    come_late(Op::recv);
    if (context.rank() == 1) world.send(std::span<const float>(values), 0);
    else world.recv(std::span(values), 1);
    come_late(Op::all_reduce);
    world.post_all_reduce(std::span<const float>(values), std::span(values), Reduction::sum).wait();
    engine_of(context).observe(nullptr);
    if (context.rank() == 1) return;
    std::vector<Op> waited;
    for (const TraceEvent& event : trace.events()) {
      if (event.name != "wait" || event.waited_for != 1) continue;
      EXPECT_GT(event.sequence, 0U);
      waited.push_back(event.waited_op);
    }
    EXPECT_EQ(waited, (std::vector<Op>{Op::barrier, Op::all_reduce, Op::recv, Op::all_reduce}));
  });
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_waits_test
