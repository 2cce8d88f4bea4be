// Streams: in order within, independent between; nothing that is issued in another order elsewhere can hang.

#include "tests/support/calls.h"
#include "tests/support/oracle.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

namespace tsprun::detail::test::collectives_streams_test {
namespace {

/// A size, in bytes, larger than any buffer between two ranks: whole lanes are 40 KiB, staging 64 KiB.
constexpr std::size_t kLarge = std::size_t{2} << 20;

Call large_call(Op op, Stream stream, Where where, std::uint64_t seed, int ranks) {
  Call call;
  call.op = op;
  call.dtype = DType::byte;
  call.counts.assign(static_cast<std::size_t>(ranks), kLarge);
  call.posted = true;
  call.where = where;
  call.options.stream = stream;
  call.seed = seed;
  return call;
}

class OppositeOrder : public testing::TestWithParam<Where> {};

TEST_P(OppositeOrder, OfTwoStreamsOnTwoRanksCompletes) {
  for (Op op : {Op::send, Op::broadcast, Op::all_gather, Op::all_to_all}) {
    run_ranks(2, [&](Context& context) {
      const Call weights = large_call(op, Stream::weights, GetParam(), 1, 2);
      const Call kv = large_call(op, Stream::kv, GetParam(), 2, 2);
      const bool forward = context.rank() == 0;
      // One communicator a stream: members of a group issue its operations in one order.
      const std::array<int, 2> both = {0, 1};
      Communicator other = context.world().subgroup(both);
      auto first = forward ? start(context, context.world(), weights) : start(context, other, kv);
      auto second = forward ? start(context, other, kv) : start(context, context.world(), weights);
      // Waits for what the peer issued last.
      second->finish();
      first->finish();
    });
  }
}

TEST_P(OppositeOrder, OnOneCommunicatorCompletes) {
  run_ranks(2, [&](Context& context) {
    const Call weights = large_call(Op::all_gather, Stream::weights, GetParam(), 1, 2);
    const Call kv = large_call(Op::all_gather, Stream::kv, GetParam(), 2, 2);
    const bool forward = context.rank() == 0;
    auto first = start(context, context.world(), forward ? weights : kv);
    auto second = start(context, context.world(), forward ? kv : weights);
    second->finish();
    first->finish();
  });
}

TEST_P(OppositeOrder, OfAllFourStreamsOnManyRanksCompletes) {
  constexpr int kRanks = 4;
  run_ranks(
      kRanks,
      [&](Context& context) {
        std::vector<std::unique_ptr<Running>> running;
        for (int i = 0; i < kStreams; ++i) {
          const Stream stream = static_cast<Stream>((i + context.rank()) % kStreams);
          running.push_back(
              start(context, context.world(),
                    large_call(Op::all_to_all, stream, GetParam(), 10 + static_cast<std::uint64_t>(stream), kRanks)));
        }
        while (!running.empty()) {
          running.back()->finish();
          running.pop_back();
        }
      },
      RankOptions{.heap_bytes = 1ULL << 30});
}

INSTANTIATE_TEST_SUITE_P(Memory, OppositeOrder, testing::Values(Where::heap, Where::plain),
                         [](const auto& test) { return test.param == Where::heap ? "heap" : "plain"; });

// Operations of one stream run in the order of issue: the second one's input is the first one's output.
TEST(Streams, RunInOrderOfIssue) {
  constexpr std::size_t kCount = 20'000;
  run_ranks(3, [](Context& context) {
    Communicator& world = context.world();
    std::vector<double> data(kCount, context.rank() == 0 ? 1.0 : -1.0);
    CallOptions options;
    options.stream = Stream::gradients;
    std::vector<Work> works;
    // Each all_reduce of equal values triples them.
    works.push_back(world.post_broadcast(std::span<double>(data), 0, options));
    for (int i = 0; i < 10; ++i) {
      works.push_back(world.post_all_reduce(std::span<const double>(data), std::span<double>(data), Reduction::sum, options));
    }
    works.back().wait();
    for (Work& work : works) EXPECT_TRUE(work.test());
    for (double value : data) ASSERT_EQ(value, 59049.0);
  });
}

TEST(Streams, TestMakesProgressWithoutWaiting) {
  run_ranks(2, [](Context& context) {
    std::vector<float> send(100'000);
    fill(std::span<float>(send), 3, context.rank());
    std::vector<float> recv(2 * send.size());
    Work work = context.world().post_all_gather(std::span<const float>(send), std::span<float>(recv));
    while (!work.test()) {
    }
    for (std::size_t i = 0; i < send.size(); ++i) {
      ASSERT_EQ(recv[i], sample<float>(3, 0, i));
      ASSERT_EQ(recv[send.size() + i], sample<float>(3, 1, i));
    }
  });
}

TEST(Streams, TickAloneCompletesPostedOperations) {
  run_ranks(2, [](Context& context) {
    std::vector<float> data(200'000, 1.0F);
    CallOptions options;
    options.stream = Stream::kv;
    Work work = context.world().post_all_reduce(std::span<const float>(data), std::span<float>(data), Reduction::sum, options);
    while (!engine_of(context).idle()) context.tick();
    EXPECT_TRUE(work.test());
    for (float value : data) ASSERT_EQ(value, 2.0F);
    context.world().barrier();
  });
}

TEST(Streams, ADroppedWorkGoesOn) {
  run_ranks(2, [](Context& context) {
    std::vector<float> data(1000, 1.0F);
    context.world().post_all_reduce(std::span<const float>(data), std::span<float>(data), Reduction::sum);
    context.world().barrier();
    for (float value : data) ASSERT_EQ(value, 2.0F);
  });
}

TEST(Streams, ADefaultWorkIsComplete) {
  Work work;
  EXPECT_TRUE(work.test());
  work.wait();
}

// Receives can be posted long before, and in numbers beyond what a lane can hold.
TEST(Streams, ManyPostedSendsAndReceivesMatchInOrder) {
  constexpr int kMessages = 2000;
  run_ranks(2, [](Context& context) {
    std::vector<float> values(kMessages);
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      const std::span<float> one = std::span<float>(values).subspan(static_cast<std::size_t>(i), 1);
      if (context.rank() == 0) {
        one[0] = static_cast<float>(i);
        works.push_back(context.world().post_send(one, 1));
      } else {
        works.push_back(context.world().post_recv(one, 0));
      }
    }
    for (Work& work : works) work.wait();
    for (int i = 0; i < kMessages; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(i));
  });
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_streams_test
