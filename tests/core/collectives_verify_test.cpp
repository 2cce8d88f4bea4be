// --verify: all operations give what they give without, and a payload that is damaged on its way ends the job with an error that
// names both ranks, the operation and its number.

#include "core/collectives/communicator_state.h"
#include "core/collectives/staging.h"
#include "tests/support/calls.h"
#include "tests/support/damage.h"
#include "tests/support/run_ranks.h"
#include "transport/shm/shm_transport.h"
#include "transport/verify/verify_transport.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test::collectives_verify_test {
namespace {

TEST(Verify, RandomOperationsGiveWhatTheirDefinitionsSay) {
  for (const int nodes : {1, 2}) {
    run_ranks(4,
              [](Context& context) {
                for (std::uint64_t i = 0; i < 300; ++i)
                  run(context, context.world(), random_call(mix(5, i), context.size(), 30'000));
              },
              {.heap_bytes = 64 << 20, .nodes = nodes, .verify = true});
  }
}

TEST(Verify, LongBuffersWithMoreSegmentsThanALaneHasSlots) {
  run_ranks(2,
            [](Context& context) {
              for (const Op op : {Op::all_reduce, Op::all_gather, Op::broadcast, Op::reduce_scatter}) {
                for (const Algorithm algorithm : algorithms_of(op)) {
                  Call call;
                  call.op = op;
                  call.counts.assign(2, 5'000'001);
                  call.options.algorithm = algorithm;
                  run(context, context.world(), call);
                }
              }
            },
            {.heap_bytes = 512 << 20, .verify = true});
}

TEST(Verify, TrafficIsThatOfThePayloads) {
  for (const bool verify : {false, true}) {
    std::uint64_t received = 0;
    run_ranks(3,
              [&](Context& context) {
                std::vector<float> part(1000);
                std::vector<float> whole(3000);
                context.world().all_gather(std::span<const float>(part), std::span(whole), {.purpose = Purpose::kv});
                if (context.rank() == 1) received = context.traffic().received[static_cast<std::size_t>(Purpose::kv)];
              },
              {.heap_bytes = 16 << 20, .verify = verify});
    EXPECT_EQ(received, 8000U);
  }
}

/// A rank put together by hand; on the way to rank 1 the second payload of each lane is damaged.
struct Rank {
  Rank(shm::NodeMemory& memory, int rank)
      : heap(memory.heap(rank), 0, {}),
        shm(memory, rank),
        damaging(shm, rank == 1 ? 4 : ~Ticket{0}, 2),
        checked(damaging),
        engine(FlightBoard(memory), rank, {{&checked, 0}, {&checked, 1}}, memory.doorbell(rank),
               {.timeout_ns = 10'000'000'000, .oversubscribed = true}),
        staging(heap),
        world(CommunicatorState::make(engine, heap, staging, choices, {0, 1})) {}
  Heap heap;
  shm::ShmTransport shm;
  DamagingTransport damaging;
  verify::VerifyTransport checked;
  Engine engine;
  Staging staging;
  ChoiceTable choices;
  Communicator world;
};

TEST(Verify, ADamagedPayloadEndsTheJobNamingBothRanksAndTheOperation) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{3000}, std::size_t{300'000}}) {
    shm::NodeMemory memory = shm::NodeMemory::create_memfd({.local_ranks = 2, .heap_bytes = 64 << 20, .world_size = 2});
    std::optional<Error> failures[2];
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        Rank rank(memory, r);
        std::vector<float> data(count, static_cast<float>(1 + r));
        try {
          rank.world.broadcast(std::span(data), 0);
          if (r == 0) data.assign(count, 7.0F);
          rank.world.broadcast(std::span(data), 0);  // the damaged one
          rank.world.barrier();
        } catch (const Error& error) {
          failures[r] = error;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(failures[1]) << count;
    EXPECT_EQ(failures[1]->cause(), Cause::corrupt) << failures[1]->what();
    EXPECT_EQ(failures[1]->op(), "broadcast");
    EXPECT_EQ(failures[1]->sequence(), 2U);
    EXPECT_NE(std::string(failures[1]->what()).find("rank 1 is in broadcast"), std::string::npos) << failures[1]->what();
    EXPECT_NE(std::string(failures[1]->what()).find("from rank 0 is damaged"), std::string::npos) << failures[1]->what();
    if (failures[0]) {
      EXPECT_EQ(failures[0]->cause(), Cause::corrupt) << failures[0]->what();
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_verify_test
