// When a blocking collective lets its peers read a payload where it lies, and when it is copied first: by what a rank can
// observe, which is whether it goes on before its peers take part.

#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace tsprun::detail::test::collectives_in_place_test {
namespace {

constexpr std::size_t kSmall = 4096;
constexpr std::size_t kMedium = 32 * 1024;

Buffer bytes_of(HeapBlock& block) { return {block.bytes().data(), block.bytes().size(), DType::byte}; }

/// Returns true if the root of a blocking broadcast of `bytes` from the heap goes on before the other rank takes part, of which
/// both must be sure: the other takes part when the root has gone on, or, if that is never, after a while.
bool root_goes_on(std::size_t bytes, std::uint32_t cores, bool posted = false) {
  std::atomic<bool> gone_on = false;
  std::atomic<bool> taking_part = false;
  bool before = false;
  run_ranks(2,
            [&](Context& context) {
              HeapBlock block = context.allocate(bytes, "broadcast");
              if (context.rank() == 0) {
                Work work;
                if (posted) work = context.world().post_broadcast(bytes_of(block), 0);
                else context.world().broadcast(bytes_of(block), 0);
                before = posted ? work.test() : !taking_part;
                gone_on = true;
                if (posted) work.wait();
              } else {
                const auto begin = std::chrono::steady_clock::now();
                while (!gone_on && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200)) {
                  context.tick();
                  std::this_thread::yield();
                }
                taking_part = true;
                context.world().broadcast(bytes_of(block), 0);
              }
              context.world().barrier();
            },
            {.cores = cores});
  return before;
}

TEST(CollectivesInPlace, WithCoresOfTheirOwnRanksReadSmallPayloadsWhereTheyLie) {
  EXPECT_TRUE(root_goes_on(kCopiedBytes, 2));
  EXPECT_FALSE(root_goes_on(kSmall, 2));
  EXPECT_FALSE(root_goes_on(kMedium, 2));
}

TEST(CollectivesInPlace, RanksThatShareCoresCopySmallPayloads) {
  EXPECT_TRUE(root_goes_on(kSmall, 1));
  EXPECT_TRUE(root_goes_on(kStagedFromHeapBytes, 1));
  EXPECT_FALSE(root_goes_on(kMedium, 1));
}

TEST(CollectivesInPlace, WhatIsPostedLeavesAtOnce) {
  for (const std::uint32_t cores : {1U, 2U}) {
    EXPECT_TRUE(root_goes_on(kSmall, cores, true));
    EXPECT_TRUE(root_goes_on(kStagedBytes, cores, true));
    EXPECT_FALSE(root_goes_on(kStagedBytes + 64, cores, true));
  }
}

/// What a rank's heap holds must not depend on the machine's cores: plans are made elsewhere.
TEST(CollectivesInPlace, HeapsHoldTheSameWhoeverHasACore) {
  std::vector<std::uint64_t> held;
  for (const std::uint32_t cores : {1U, 3U}) {
    run_ranks(3,
              [&](Context& context) {
                HeapBlock own = context.allocate(kSmall, "own");
                HeapBlock all = context.allocate(3 * kSmall, "all");
                context.world().all_gather(bytes_of(own), bytes_of(all));
                context.world().barrier();
                if (context.rank() == 0) held.push_back(heap_of(context).use().total);
              },
              {.cores = cores});
  }
  EXPECT_EQ(held[0], held[1]);
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_in_place_test
