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

/// Returns true if the root of a blocking broadcast of `bytes` from the heap goes on before the other rank takes part. That takes
/// part when the root has gone on, or after `patience`.
bool goes_on(std::size_t bytes, std::uint32_t cores, std::chrono::milliseconds patience) {
  std::atomic<bool> gone_on = false;
  std::atomic<bool> taking_part = false;
  bool before = false;
  run_ranks(2,
            [&](Context& context) {
              HeapBlock block = context.allocate(bytes, "broadcast");
              if (context.rank() == 0) {
                context.world().broadcast(bytes_of(block), 0);
                before = !taking_part;
                gone_on = true;
              } else {
                const auto begin = std::chrono::steady_clock::now();
                while (!gone_on && std::chrono::steady_clock::now() - begin < patience) {
                  context.tick();
                  std::this_thread::yield();
                }
                taking_part = true;
                context.world().broadcast(bytes_of(block), 0);
              }
            },
            {.cores = cores});
  return before;
}

/// Expects that the root goes on, however long a busy machine takes for that.
bool goes_on(std::size_t bytes, std::uint32_t cores) { return goes_on(bytes, cores, std::chrono::seconds(20)); }
/// Expects that the root waits for the other rank.
bool waits(std::size_t bytes, std::uint32_t cores) { return !goes_on(bytes, cores, std::chrono::milliseconds(200)); }

/// Returns true if a posted broadcast is complete on its root before the other rank takes part.
bool is_complete_at_once(std::size_t bytes, std::uint32_t cores) {
  std::atomic<bool> posted = false;
  bool complete = false;
  run_ranks(2,
            [&](Context& context) {
              HeapBlock block = context.allocate(bytes, "broadcast");
              if (context.rank() == 0) {
                Work work = context.world().post_broadcast(bytes_of(block), 0);
                complete = work.test();
                posted = true;
                work.wait();
              } else {
                while (!posted) {
                  context.tick();
                  std::this_thread::yield();
                }
                context.world().broadcast(bytes_of(block), 0);
              }
            },
            {.cores = cores});
  return complete;
}

TEST(CollectivesInPlace, WithCoresOfTheirOwnRanksReadSmallPayloadsWhereTheyLie) {
  EXPECT_TRUE(goes_on(kCopiedBytes, 2));
  EXPECT_TRUE(waits(kSmall, 2));
  EXPECT_TRUE(waits(kMedium, 2));
}

TEST(CollectivesInPlace, RanksThatShareCoresCopySmallPayloads) {
  EXPECT_TRUE(goes_on(kSmall, 1));
  EXPECT_TRUE(goes_on(kStagedFromHeapBytes, 1));
  EXPECT_TRUE(waits(kMedium, 1));
}

TEST(CollectivesInPlace, WhatIsPostedLeavesAtOnce) {
  for (const std::uint32_t cores : {1U, 2U}) {
    EXPECT_TRUE(is_complete_at_once(kSmall, cores));
    EXPECT_TRUE(is_complete_at_once(kStagedBytes, cores));
    EXPECT_FALSE(is_complete_at_once(kStagedBytes + 64, cores));
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
