// Who waits for whom, as the flight board has it: chains, circles, and circles in which one rank says nothing any more.
#include "core/board/flight_board.h"
#include "transport/shm/node_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace tsprun::detail::wait_chain_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kNow = 100 * kSecond;

class WaitChain : public ::testing::Test {
 protected:
  /// `rank` waits for `peer` (-1: for nobody) and has last looked around at `sign_ns`.
  void place(int rank, int peer, std::uint64_t sign_ns) {
    RankPage& page = board_.page(rank);
    page.life.store(static_cast<std::uint32_t>(Life::alive));
    page.blocked_on.store(peer < 0 ? 0 : 1);
    page.activity[0].busy.store(peer < 0 ? 0 : 1);
    page.activity[0].waiting_for.store(peer);
    page.last_sign_ns.store(sign_ns);
  }

  shm::NodeMemory memory_ = shm::NodeMemory::create_memfd({.local_ranks = 4, .heap_bytes = 1 << 20, .world_size = 4});
  FlightBoard board_{memory_};
};

TEST_F(WaitChain, OfRanksThatAllLookAroundStaysACircle) {
  for (int rank = 0; rank < 4; ++rank) place(rank, (rank + 1) % 4, kNow - kSecond);
  const FlightBoard::Chain chain = board_.up_to_silent(board_.wait_chain(1), kNow - 2 * kSecond);
  EXPECT_TRUE(chain.cycle);
  EXPECT_EQ(chain.ranks, (std::vector<int>{1, 2, 3, 0}));
}

/// A silent rank's page is old, so nobody knows for whom it waits.
TEST_F(WaitChain, EndsAtARankThatIsSilent) {
  for (int rank = 0; rank < 4; ++rank) place(rank, (rank + 1) % 4, rank == 3 ? kNow - 10 * kSecond : kNow);
  const FlightBoard::Chain chain = board_.up_to_silent(board_.wait_chain(1), kNow - 2 * kSecond);
  EXPECT_FALSE(chain.cycle);
  EXPECT_EQ(chain.ranks, (std::vector<int>{1, 2, 3}));
}

/// A rank that never looked around has had nothing to wait for; and where there is no circle the last is the root, silent or not.
TEST_F(WaitChain, IsCutNowhereElse) {
  for (int rank = 0; rank < 4; ++rank) place(rank, (rank + 1) % 4, 0);
  EXPECT_TRUE(board_.up_to_silent(board_.wait_chain(1), kNow).cycle);
  place(2, 3, kNow - 10 * kSecond);
  place(3, -1, kNow - 10 * kSecond);
  EXPECT_EQ(board_.up_to_silent(board_.wait_chain(1), kNow).ranks, (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace tsprun::detail::wait_chain_test
