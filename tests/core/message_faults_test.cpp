// Injected faults of messages: the same seed strikes the same operations whatever carries them, damage is found where anything
// checks it, and touches nobody but the rank that it was meant for.

#include "core/fault/message_faults.h"
#include "tests/support/run_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::message_faults_test {
namespace {

/// Operation and number of each fault that struck messages to a rank.
using Struck = std::vector<std::pair<std::string, std::uint32_t>>;

Struck struck_at(Context& context, int rank) {
  Struck struck;
  for (const FaultRecord& record : board_of(context).fault_records(rank)) struck.emplace_back(record.op, record.sequence);
  return struck;
}

/// Deadline of ranks on several nodes, within which they also have to connect.
constexpr std::uint64_t kSocketsDeadline_ns = 3'000'000'000;

constexpr Channel kChannels[] = {Channel::streams, Channel::own};

/// The world, or a communicator of the same ranks with a channel of its own.
Communicator all_ranks(Context& context, Channel channel) {
  std::vector<int> ranks(static_cast<std::size_t>(context.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return context.world().subgroup(ranks, channel);
}

/// Every kind of operation, some rounds of each; every rank has something for every other.
void do_everything(Context& context, int rounds, Channel channel) {
  Communicator world = all_ranks(context, channel);
  const auto n = static_cast<std::size_t>(world.size());
  std::vector<float> part(64, 1.0F);
  std::vector<float> whole(64 * n, 1.0F);
  std::vector<float> result(64 * n);
  for (int i = 0; i < rounds; ++i) {
    const int root = i % world.size();
    world.all_gather(std::span<const float>(part), std::span(result));
    world.broadcast(std::span(part), root);
    world.all_reduce(std::span<const float>(whole), std::span(result), Reduction::sum);
    world.reduce_scatter(std::span<const float>(whole), std::span(part), Reduction::sum);
    world.all_to_all(std::span<const float>(whole), std::span(result));
    world.reduce(std::span<const float>(whole), std::span(result), Reduction::sum, root);
    world.barrier();
  }
}

constexpr int kRanks = 4;
constexpr int kTo = 2;

/// Messages that a fault struck on its way to rank kTo until the job ended, of itself or by it.
Struck strike_everything(const std::string& fault, RankOptions options, Channel channel = Channel::streams) {
  options.heap_bytes = 16 << 20;
  options.faults = {fault};
  Struck struck;
  try_ranks(
      kRanks,
      [&](Context& context) {
        const auto look = [&] {
          if (context.rank() == kTo) struck = struck_at(context, kTo);
        };
        try {
          do_everything(context, 4, channel);
        } catch (...) {
          look();
          throw;
        }
        look();
      },
      options);
  return struck;
}

TEST(MessageFaults, TheSameSeedStrikesTheSameOperationsWhateverTheAlgorithm) {
  const std::string fault = "corrupt:from=1,to=2,prob=0.3,seed=3";
  const Struck direct = strike_everything(fault, {});
  EXPECT_GT(direct.size(), 2U);
  EXPECT_LT(direct.size(), 20U);
  EXPECT_EQ(strike_everything(fault, {}), direct);
  const std::string ring = "all_gather=ring,broadcast=ring,all_reduce=ring,reduce_scatter=ring,reduce=ring";
  EXPECT_EQ(strike_everything(fault, {.algorithms = ring}), direct);
  EXPECT_NE(strike_everything("corrupt:from=1,to=2,prob=0.3,seed=4", {}), direct);
}

// Over tcp and with --verify the first ends the job.
TEST(MessageFaults, TheSameSeedStrikesTheSameOperationsOnEveryTransport) {
  for (const int seed : {1, 2, 3}) {
    const std::string fault = fmt::format("corrupt:from=1,to=2,prob=0.3,seed={}", seed);
    Struck first = strike_everything(fault, {});
    ASSERT_FALSE(first.empty());
    first.resize(1);
    EXPECT_EQ(strike_everything(fault, {.nodes = 2}), first) << fault;
    EXPECT_EQ(strike_everything(fault, {.share = false}), first) << fault;
    EXPECT_EQ(strike_everything(fault, {.verify = true}), first) << fault;
    EXPECT_EQ(strike_everything(fault, {.nodes = 2}, Channel::own), first) << fault;
    EXPECT_EQ(strike_everything(fault, {.verify = true}, Channel::own), first) << fault;
  }
}

// What is late ends no job: all that was struck must be the same, and the same that damage of this seed strikes.
TEST(MessageFaults, TheSameSeedDelaysTheSameOperationsOnEveryTransport) {
  const std::string ring = "all_gather=ring,broadcast=ring,all_reduce=ring,reduce_scatter=ring,reduce=ring";
  for (const int seed : {3, 8}) {
    const std::string late = fmt::format("delay:from=1,to=2,ms=0.5,prob=0.3,seed={}", seed);
    const Struck damaged = strike_everything(fmt::format("corrupt:from=1,to=2,prob=0.3,seed={}", seed), {});
    EXPECT_GT(damaged.size(), 2U);
    EXPECT_EQ(strike_everything(late, {}), damaged) << late;
    EXPECT_EQ(strike_everything(late, {.algorithms = ring}), damaged) << late;
    EXPECT_EQ(strike_everything(late, {.nodes = 2}), damaged) << late;
    EXPECT_EQ(strike_everything(late, {.share = false}), damaged) << late;
    EXPECT_EQ(strike_everything(late, {.verify = true}), damaged) << late;
    EXPECT_EQ(strike_everything(late, {}, Channel::own), damaged) << late;
    EXPECT_EQ(strike_everything(late, {.algorithms = ring}, Channel::own), damaged) << late;
    EXPECT_EQ(strike_everything(late, {.nodes = 2}, Channel::own), damaged) << late;
  }
  // Every message but that of the barrier: as many as NthCountsWhatTheDefinitionsPrescribe says.
  EXPECT_EQ(strike_everything("delay:from=1,to=2,ms=0.1", {}).size(), kFaultLines);
  EXPECT_EQ(strike_everything("delay:from=1,to=2,ms=0.1,prob=0", {}).size(), 0U);
}

TEST(MessageFaults, NthCountsWhatTheDefinitionsPrescribe) {
  // Rank 2 gets a message from rank 1 in all_gather, all_reduce, reduce_scatter and all_to_all of each round; in broadcast where
  // rank 1 is the root (round 2), in reduce where rank 2 is (round 3).
  const std::vector<std::pair<int, Struck>> expected = {{1, {{"all_gather", 1}}},
                                                        {4, {{"all_to_all", 1}}},
                                                        {6, {{"broadcast", 2}}},
                                                        {9, {{"all_to_all", 2}}},
                                                        {14, {{"reduce", 3}}},
                                                        {18, {{"all_to_all", 4}}},
                                                        {19, {}}};
  for (const auto& [nth, where] : expected) {
    EXPECT_EQ(strike_everything(fmt::format("corrupt:from=1,to=2,nth={}", nth), {}), where) << nth;
  }
}

TEST(MessageFaults, DefinitionsSayWhoHasSomethingForWhom) {
  const std::vector<int> members = {0, 2, 5};
  const auto says = [&](Op op, int root, int from, int to) {
    return prescribes_message({.op = op, .root = root, .source = -1}, members, from, to);
  };
  EXPECT_TRUE(says(Op::all_gather, -1, 5, 2));
  EXPECT_FALSE(says(Op::all_gather, -1, 1, 2));
  EXPECT_TRUE(says(Op::broadcast, 5, 5, 2));
  EXPECT_FALSE(says(Op::broadcast, 0, 5, 2));
  EXPECT_TRUE(says(Op::reduce, 2, 5, 2));
  EXPECT_FALSE(says(Op::reduce, 5, 5, 2));
  EXPECT_FALSE(says(Op::barrier, -1, 5, 2));
  EXPECT_TRUE(says(Op::recv, 5, 5, 2));
  EXPECT_FALSE(says(Op::send, 5, 5, 2));
  EXPECT_TRUE(prescribes_message({.op = Op::send_recv, .root = 0, .source = 5}, members, 5, 2));
  EXPECT_FALSE(prescribes_message({.op = Op::send_recv, .root = 5, .source = 0}, members, 5, 2));
}

// Small ones are received, large ones viewed: the damaged copy is private to the rank that the fault names.
TEST(MessageFaults, DamageIsOneBitOnTheRankThatItWasMeantFor) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{3000}, std::size_t{300'000}}) {
    for (const Channel channel : kChannels) {
      std::mutex mutex;
      std::vector<int> wrong_bits(3);
      run_ranks(3,
                [&](Context& context) {
                  std::vector<std::uint32_t> data(count);
                  if (context.rank() == 0) std::ranges::generate(data, [i = 0U]() mutable { return i++ * 2654435761U; });
                  all_ranks(context, channel)
                      .broadcast(Buffer(data.data(), count * 4, DType::byte), 0, {.algorithm = Algorithm::direct});
                  int wrong = 0;
                  for (std::size_t i = 0; i < count; ++i)
                    wrong += std::popcount(data[i] ^ static_cast<std::uint32_t>(i) * 2654435761U);
                  const std::lock_guard lock(mutex);
                  wrong_bits[static_cast<std::size_t>(context.rank())] = wrong;
                },
                {.heap_bytes = 64 << 20, .faults = {"corrupt:from=0,to=1,nth=1"}});
      EXPECT_EQ(wrong_bits, (std::vector<int>{0, 1, 0})) << count;
    }
  }
}

/// A broadcast of `count` floats, thrice, and a barrier after each.
RankBody broadcasts(std::size_t count, Channel channel = Channel::streams) {
  return [count, channel](Context& context) {
    Communicator world = all_ranks(context, channel);
    std::vector<float> data(count, 1.0F);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      context.begin_step(i);
      world.broadcast(std::span(data), 0);
      world.barrier();
    }
  };
}

TEST(MessageFaults, WhoeverChecksPayloadsFindsTheDamage) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{3000}, std::size_t{300'000}}) {
    for (RankOptions options : {RankOptions{.verify = true}, RankOptions{.nodes = 2}}) {
      options.heap_bytes = 64 << 20;
      options.faults = {"corrupt:from=0,to=1,nth=2"};
      for (const Channel channel : kChannels) {
        const std::vector<RankOutcome> outcomes = try_ranks(2, broadcasts(count, channel), options);
        EXPECT_EQ(outcomes[1].cause, Cause::corrupt) << describe(outcomes);
        EXPECT_EQ(outcomes[1].culprit, 0) << describe(outcomes);
        EXPECT_EQ(outcomes[1].op, "broadcast");
        EXPECT_EQ(outcomes[1].sequence, 2U);
      }
    }
  }
}

TEST(MessageFaults, ALostMessageIsFoundByTheNextOrAtTheDeadline) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{3000}, std::size_t{300'000}}) {
    for (const Channel channel : kChannels) {
      for (RankOptions options : {RankOptions{}, RankOptions{.verify = true}, RankOptions{.nodes = 2}}) {
        options.heap_bytes = 64 << 20;
        // Sockets aren't seen by the clock of tests.
        SharedClock clock;
        if (options.nodes == 1) options.clock = &clock;
        else options.timeout_ns = kSocketsDeadline_ns;
        options.faults = {"drop:from=0,to=1,nth=2"};
        const std::vector<RankOutcome> outcomes = try_ranks(2, broadcasts(count, channel), options);
        // A channel asks for the second segment once the first is here, so nothing comes behind that one. No board tells the
        // other node's news here.
        const bool nothing_follows = channel == Channel::own && count > 100'000;
        const bool named = outcomes[1].cause == Cause::mismatch || outcomes[1].cause == Cause::deadlock ||
                           (nothing_follows && options.nodes == 2 && outcomes[1].cause == Cause::stalled);
        EXPECT_TRUE(named) << describe(outcomes);
        EXPECT_NE(outcomes[1].message.find(nothing_follows ? "broadcast #2" : "lost"), std::string::npos) << describe(outcomes);
      }
    }
  }
}

TEST(MessageFaults, ACutWayIsNamed) {
  for (RankOptions options : {RankOptions{}, RankOptions{.verify = true}, RankOptions{.nodes = 2}}) {
    options.heap_bytes = 64 << 20;
    SharedClock clock;
    if (options.nodes == 1) options.clock = &clock;
    else options.timeout_ns = kSocketsDeadline_ns;
    options.faults = {"disconnect:from=0,to=1,step=2"};
    const std::vector<RankOutcome> outcomes = try_ranks(2, broadcasts(1000), options);
    EXPECT_EQ(outcomes[1].cause, Cause::disconnected) << describe(outcomes);
    EXPECT_EQ(outcomes[1].culprit, 0);
    EXPECT_EQ(outcomes[1].op, "broadcast");
    EXPECT_EQ(outcomes[1].sequence, 2U);
    EXPECT_NE(outcomes[1].message.find("--fault disconnect:from=0,to=1,step=2"), std::string::npos) << outcomes[1].message;
  }
}

TEST(MessageFaults, WhatIsToBeLostAndDamagedAtOnceIsStruckTwice) {
  SharedClock clock;
  const std::vector<RankOutcome> outcomes =
      try_ranks(2, broadcasts(100),
                {.heap_bytes = 16 << 20,
                 .faults = {"corrupt:from=0,to=1,nth=1", "corrupt:from=0,to=1,nth=3", "drop:from=0,to=1,nth=3"},
                 .clock = &clock});
  EXPECT_TRUE(outcomes[1].failed);
}

}  // namespace
}  // namespace tsprun::detail::test::message_faults_test
