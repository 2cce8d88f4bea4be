// The bit that an injected fault flips is the drawn one, whether or not the transport below checks payloads by itself.
#include "transport/fault/damage_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace tsprun::detail::damage_transport_test {
namespace {

TEST(DamagedArrivals, FlipTheChosenBitOfAMessageThatComesInPieces) {
  constexpr LaneId kLane{3, Stream::kv};
  constexpr Ticket kTicket = 7;
  constexpr std::size_t kPiece = 100;
  std::array<std::byte, 250> message{};
  fault::DamagedArrivals arrivals;
  arrivals.damage(kLane, kTicket, 217, std::byte{0x20});

  const auto arrive = [&](LaneId lane, Ticket ticket, std::size_t at) {
    const auto piece = std::span(message).subspan(at, std::min(kPiece, message.size() - at));
    return arrivals.is_whole(lane, ticket, at, piece, checksum(piece));
  };
  EXPECT_TRUE(arrive(kLane, kTicket - 1, 200));
  EXPECT_TRUE(arrive({3, Stream::weights}, kTicket, 200));
  EXPECT_TRUE(arrive(kLane, kTicket, 0));
  EXPECT_TRUE(arrive(kLane, kTicket, 100));
  EXPECT_FALSE(arrive(kLane, kTicket, 200));
  for (std::size_t i = 0; i < message.size(); ++i) EXPECT_EQ(message[i], i == 217 ? std::byte{0x20} : std::byte{0}) << i;
  EXPECT_TRUE(arrive(kLane, kTicket, 200)) << "it is flipped once";
}

}  // namespace
}  // namespace tsprun::detail::damage_transport_test
