// Speeds of links, as one rank measures them.
#include "core/streams/link_times.h"

#include "transport/shm/node_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tsprun::detail::test::link_times_test {
namespace {

// 20 GB times 10⁹ is more than 64 bits hold.
TEST(LinkTimes, AMessageOfManyGigabytesIsAsFastAsItWas) {
  const shm::NodeMemory memory = shm::NodeMemory::create_memfd({.local_ranks = 2, .heap_bytes = 1 << 20, .world_size = 2});
  const FlightBoard board(memory);
  LinkTimes times(board.page(0), 2);
  times.arrived(1, 20'000'000'000, 2'000'000'000);
  EXPECT_EQ(board.page(0).links[0].fastest.load(), 10'000'000'000U);
  times.arrived(1, 200'000'000'000, 100'000'000'000);
  EXPECT_EQ(board.page(0).links[0].fastest.load(), 2'000'000'000U);
}

}  // namespace
}  // namespace tsprun::detail::test::link_times_test
