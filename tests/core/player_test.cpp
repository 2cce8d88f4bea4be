// Virtual time: collectives of recorded programs on a fabric, against closed formulas.
#include "tests/core/player_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::test::player_test {
namespace {

using namespace player_support;

using testing::HasSubstr;

TEST(Player, ARingTakesItsHopsOneAfterAnother) {
  constexpr int kRanks = 4;
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  constexpr std::size_t kChunk = kBytes / kRanks;
  const auto programs = record(kRanks, kRanks, kRanks, kBytes / 4, "all_gather=ring", all_gather);
  const PlayedRun run = play(programs, options(kRanks, true));
  EXPECT_NEAR(run.seconds, 3 * (kLatency + kChunk / kRate), 1e-9);
  for (const PlayedTimes& rank : run.ranks) {
    EXPECT_EQ(rank.traffic.received[static_cast<std::size_t>(Purpose::other)], 3 * kChunk);
    EXPECT_EQ(rank.exposed, rank.seconds);
    EXPECT_EQ(rank.compute, 0);
  }
}

TEST(Player, ADirectGatherUsesAllLinksAtOnce) {
  constexpr int kRanks = 8;
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  constexpr std::size_t kChunk = kBytes / kRanks;
  const auto programs = record(kRanks, kRanks, kRanks, kBytes / 4, "all_gather=direct", all_gather);
  EXPECT_NEAR(play(programs, options(kRanks, true)).seconds, kLatency + kChunk / kRate, 1e-9);
  // Through a switch each rank receives all chunks by its one port.
  EXPECT_NEAR(play(programs, options(kRanks, false)).seconds, kLatency + 7 * kChunk / kRate, 0.05 * 7 * kChunk / kRate);
}

TEST(Player, ABroadcastThroughASwitchLeavesByOnePort) {
  constexpr int kRanks = 4;
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto programs = record(kRanks, kRanks, kRanks, kBytes / 4, "broadcast=direct",
                               [](Context& context, Buffer all) { context.world().broadcast(all, 0); });
  EXPECT_NEAR(play(programs, options(kRanks, false)).seconds, kLatency + 3 * (kBytes / kRate), 1e-7);
}

TEST(Player, TwiceAsFastTakesHalfTheTimeExactly) {
  constexpr int kRanks = 4;
  const auto programs = record(kRanks, kRanks, 2, 1000003, "", [](Context& context, Buffer all) {
    context.world().all_reduce(all, Reduction::sum);
    all_gather(context, all.slice(0, 1000000));
    context.world().barrier();
  });
  PlayOptions slow = options(kRanks, true);
  slow.fabric.ranks_per_node = 2;
  PlayOptions fast = slow;
  fast.fabric.within_bytes_per_s *= 2;
  fast.fabric.nic_bytes_per_s *= 2;
  fast.fabric.within_latency /= 2;
  fast.fabric.nic_latency /= 2;
  const double seconds = play(programs, slow).seconds;
  EXPECT_GT(seconds, 0);
  EXPECT_EQ(play(programs, fast).seconds, seconds / 2);
  EXPECT_EQ(play(programs, slow).seconds, seconds);
  slow.steps = 3;
  EXPECT_NEAR(play(programs, slow).seconds, 3 * seconds, 0.1 * seconds);
}

TEST(Player, OnInfiniteLinksOnlyKernelsTakeTime) {
  constexpr int kRanks = 3;
  auto programs = record(kRanks, kRanks, kRanks, 999, "", all_gather);
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    Program& program = programs[rank];
    program.costs = {{.kernel = "gemm", .flops = 1e9 * static_cast<double>(rank + 1)}};
    program.items.insert(program.items.begin(), {.kind = ItemKind::kernel});
    program.items.push_back({.kind = ItemKind::kernel});
  }
  PlayOptions ideal = options(kRanks, true);
  ideal.fabric.within_bytes_per_s = std::numeric_limits<double>::infinity();
  ideal.fabric.within_latency = 0;
  ideal.price = [](int, const KernelCost& cost) { return cost.flops / 1e12; };
  const PlayedRun run = play(programs, ideal);
  EXPECT_DOUBLE_EQ(run.seconds, 2 * 3e-3);
  EXPECT_DOUBLE_EQ(run.ranks[0].compute, 2e-3);
  EXPECT_DOUBLE_EQ(run.ranks[0].exposed, 2e-3);  // waits for rank 2's chunk
}

TEST(Player, AFoldedWorldTakesAsLongAsAWholeOne) {
  // Two ranks a node: units of 2 and of 4 ranks stand for 8.
  const auto body = [](Context& context, Buffer all) {
    std::vector<int> rail;
    for (int rank = context.rank() % 2; rank < context.size(); rank += 2) rail.push_back(rank);
    Communicator across = context.world().subgroup(rail);
    std::vector<int> pair = {context.rank() / 2 * 2, context.rank() / 2 * 2 + 1};
    Communicator node = context.world().subgroup(pair);
    for (int layer = 0; layer < 3; ++layer) {
      const Work sum = across.post_all_reduce(all, all, Reduction::sum, {.stream = Stream::gradients});
      node.all_gather(all.slice(static_cast<std::size_t>(node.rank()) * (all.count / 2), all.count / 2), all);
      Work(sum).wait();
    }
    all_gather(context, all);
  };
  double whole = 0;
  for (const int unit : {8, 4, 2}) {
    const auto programs = record(8, unit, 2, 1 << 20, "all_reduce=ring,all_gather=direct", body);
    PlayOptions how = options(unit, true);
    how.fabric.ranks_per_node = 2;
    how.fabric.nics_per_node = 2;
    how.ranks = 8;
    const double seconds = play(programs, how).seconds;
    if (unit == 8) whole = seconds;
    EXPECT_NEAR(seconds, whole, 1e-2 * whole) << "units of " << unit;
  }
  EXPECT_GT(whole, 0);
}

TEST(Player, AReceiveThatWasTakenOutIsADeadlock) {
  for (const std::size_t elements : {std::size_t{100}, std::size_t{100'000}}) {
    auto programs = record(2, 2, 2, elements, "", [](Context& context, Buffer all) {
      if (context.rank() == 0) context.world().send(all, 1);
      else context.world().recv(all, 0);
    });
    EXPECT_GT(play(programs, options(2, true)).seconds, 0);
    programs[1].items.clear();
    EXPECT_THAT(failure(programs, options(2, true)),
                testing::AllOf(HasSubstr("deadlock: "), HasSubstr("rank 1 never receives a message of rank 0")));
  }
}

TEST(Player, AWaitForWhatNeverComesNamesWhoIsMissing) {
  const auto programs = record(2, 2, 2, 100, "", [](Context& context, Buffer all) {
    if (context.rank() == 0) context.world().recv(all, 1);
  });
  EXPECT_THAT(failure(programs, options(2, true)),
              testing::AllOf(HasSubstr("deadlock: "), HasSubstr("rank 0 waits in recv #1 on stream control, for rank 1")));
}

TEST(Player, MessagesOfALaneKeepTheirOrder) {
  // The large message is asked for and takes its time; the small one behind it must not be taken for it.
  const auto programs = record(2, 2, 2, 1 << 20, "", [](Context& context, Buffer all) {
    const Buffer small = all.slice(0, 1);
    if (context.rank() == 0) {
      const Work large = context.world().post_send(all, 1);
      context.world().post_send(small, 1).wait();
      Work(large).wait();
    } else {
      context.world().recv(all, 0);
      context.world().recv(small, 0);
    }
  });
  EXPECT_NEAR(play(programs, options(2, true)).seconds, kLatency + 4 * (1 << 20) / kRate, 3 * kLatency);
}

TEST(Player, DifferentCallsAreAMismatch) {
  auto programs = record(2, 2, 2, 100, "", [](Context& context, Buffer all) {
    if (context.rank() == 0) context.world().all_reduce(all, Reduction::sum);
    else context.world().all_reduce(all, Reduction::max);
  });
  EXPECT_THAT(failure(programs, options(2, true)), HasSubstr("mismatch: "));
}

TEST(Player, MessagesWithATagAreRefused) {
  const auto programs = record(2, 2, 2, 100, "", [](Context& context, Buffer all) {
    if (context.rank() == 0) context.world().send(all, 1, {.tag = 7});
    else context.world().recv(all, 0, {.tag = 7});
  });
  EXPECT_THAT(failure(programs, options(2, true)),
              testing::AllOf(HasSubstr("refused: "), HasSubstr("with a tag can't be played")));
}

TEST(Player, ASlowWayTakesItsFactorLonger) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const auto programs = record(4, 4, 4, kBytes / 4, "all_gather=direct", all_gather);
  PlayOptions how = options(4, true);
  how.fabric.slow = {{.one = 3, .other = 1, .factor = 5}};
  const PlayedRun run = play(programs, how);
  const double one = kBytes / (4 * kRate);
  EXPECT_NEAR(run.ranks[0].seconds, kLatency + one, 1e-9);
  EXPECT_NEAR(run.ranks[1].seconds, kLatency + 5 * one, 1e-9);
  EXPECT_NEAR(run.ranks[3].seconds, kLatency + 5 * one, 1e-9);
}

TEST(Player, KernelsAreSlowerWhileTheirRankMovesBytes) {
  // A kernel of 100 µs beside a message that is on its way for `moving`.
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  const double moving = kLatency + kBytes / kRate;
  auto programs = record(2, 2, 2, kBytes / 4, "", [](Context& context, Buffer all) {
    Work work = context.rank() == 0 ? context.world().post_send(all, 1) : context.world().post_recv(all, 0);
    work.wait();
  });
  for (Program& program : programs) {
    program.costs = {{.kernel = "gemm"}};
    program.items.insert(program.items.begin() + 1, {.kind = ItemKind::kernel});
  }
  PlayOptions how = options(2, true);
  how.price = [](int rank, const KernelCost&) { return rank == 0 ? 100e-6 : 10e-6; };
  EXPECT_NEAR(play(programs, how).ranks[0].compute, 100e-6, 1e-12);
  how.copies_slow_kernels = 2;
  const PlayedRun run = play(programs, how);
  EXPECT_NEAR(run.ranks[0].compute, 100e-6 + moving / 2, 1e-9);  // at half speed for as long as the message takes
  EXPECT_NEAR(run.ranks[1].compute, 20e-6, 1e-9);                // at half speed all the time
  EXPECT_NEAR(run.ranks[1].exposed, moving - 20e-6, 1e-9);
  // A message doesn't slow the host: a kernel that it starts while the message is on its way is slower from then on.
  how.host_seconds = moving / 4;
  EXPECT_NEAR(play(programs, how).ranks[0].compute, moving / 4 + 100e-6 + 0.75 * moving / 2, 1e-9);
}

TEST(Player, ATraceSaysForWhomAndForWhatARankWaits) {
  const auto programs = record(3, 3, 3, 3 << 20, "all_gather=direct", [](Context& context, Buffer all) {
    all_gather(context, all);
    all_gather(context, all);
  });
  PlayOptions how = options(3, true);
  how.trace = true;
  const PlayedRun run = play(programs, how);
  ASSERT_EQ(run.traces.size(), 3U);
  for (const PlayedTrace& trace : run.traces) {
    std::vector<std::uint64_t> waited;
    double seconds = 0;
    for (const TraceEvent& event : trace.events) {
      if (event.name != "wait") continue;
      EXPECT_EQ(event.waited_op, Op::all_gather);
      EXPECT_GE(event.waited_for, 0);
      waited.push_back(event.sequence);
      seconds += static_cast<double>(event.end_ns - event.begin_ns) * 1e-9;
    }
    EXPECT_EQ(waited, (std::vector<std::uint64_t>{1, 2}));
    EXPECT_NEAR(seconds, run.seconds, 1e-8);
    EXPECT_EQ(trace.left_out, 0U);
  }
}

TEST(Player, ProgramsMustFillTheWorld) {
  const auto programs = record(3, 3, 3, 99, "", all_gather);
  PlayOptions how = options(3, true);
  how.ranks = 8;
  EXPECT_THAT(failure(programs, how), HasSubstr("refused: these programs can't be played: 3 programs don't stand for 8 ranks"));
  how.ranks = 6;
  how.fabric.ranks_per_node = 2;
  EXPECT_THAT(failure(programs, how), HasSubstr("3 programs aren't whole nodes of 2 ranks"));
  how = options(3, true);
  how.steps = 0;
  EXPECT_THAT(failure(programs, how), HasSubstr("0 steps"));
  how = options(3, true);
  how.fabric.nics_per_node = 0;
  EXPECT_THAT(failure(programs, how), HasSubstr("nodes of 3 ranks and 0 NICs"));
}

}  // namespace
}  // namespace tsprun::detail::test::player_test
