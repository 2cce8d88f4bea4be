// Links that are made slow, and messages that are struck late: a strike holds up the message that it was armed for and no other,
// and a slow link takes bytes over its speed. Delays of an hour make "late" plain without a clock: what is pending was struck.

#include "transport/fault/delay_transport.h"
#include "transport/fault/damage_transport.h"
#include "transport/forwarding_transport.h"
#include "transport/posix.h"
#include "transport/shm/shm_transport.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tsprun::detail::delay_transport_test {
namespace {

using fault::DelayTransport;
using fault::Kind;
using fault::SlowLink;
using fault::Strike;

constexpr std::uint64_t kAnHour_ns = 3'600'000'000'000;
constexpr int kPeersRank = 10;  // of the world; as a peer it is 0

/// Rank 0 sends to rank 1 over links of these speeds; strikes() makes messages later.
class Pair {
 public:
  explicit Pair(const std::vector<double>& bytes_per_ns = {})
      : memory_(shm::NodeMemory::create_memfd({.local_ranks = 2, .heap_bytes = 64 << 20, .world_size = 2})),
        zero_(memory_, 0),
        one_(memory_, 1),
        late_(hesitant_, 0, links(bytes_per_ns), &strikes_, {kPeersRank}) {}

  /// A message of `bytes` bytes is sent and asked for; the ticket of the receive.
  Ticket pass(Stream stream, std::size_t bytes, Purpose purpose = Purpose::kv) { return pass_to(late_, stream, bytes, purpose); }
  Ticket pass_to(Transport& receiver, Stream stream, std::size_t bytes, Purpose purpose = Purpose::kv) {
    const Envelope envelope{0xabcd, ++sent_[stream], 7, purpose};
    const Ticket ticket = receiver.receive({0, stream}, envelope, memory_.heap(1).first(bytes));
    EXPECT_NE(ticket, kNotNow);
    EXPECT_NE(zero_.send({1, stream}, envelope, memory_.heap(0).first(bytes), Delivery::copy_if_small), kNotNow);
    return ticket;
  }
  bool is_here(Stream stream, Ticket ticket) {
    const Outcome outcome = late_.test_receive({0, stream}, ticket);
    EXPECT_TRUE(outcome == Outcome::done || outcome == Outcome::pending);
    return outcome == Outcome::done;
  }
  /// The next question for a message is answered "pending", though the message may be there.
  void hesitate() { hesitant_.hesitates = true; }
  DelayTransport& late() { return late_; }
  fault::Strikes& strikes() { return strikes_; }

 private:
  struct Hesitant final : ForwardingTransport {
    explicit Hesitant(Transport& inner) : ForwardingTransport(inner) {}
    Outcome test_receive(LaneId lane, Ticket ticket) override {
      return std::exchange(hesitates, false) ? Outcome::pending : inner().test_receive(lane, ticket);
    }
    bool hesitates = false;
  };

  static std::vector<SlowLink> links(const std::vector<double>& bytes_per_ns) {
    std::vector<SlowLink> slow;
    for (const double speed : bytes_per_ns) slow.push_back({.peer = 0, .from = kPeersRank, .bytes_per_ns = speed});
    return slow;
  }

  shm::NodeMemory memory_;
  shm::ShmTransport zero_;
  shm::ShmTransport one_;
  Hesitant hesitant_{one_};
  fault::Strikes strikes_;
  DelayTransport late_;
  std::map<Stream, std::uint32_t> sent_;
};

// As a message does that comes while its lane is looked at.
TEST(DelayTransport, HoldsUpAMessageThatComesBetweenTwoLooks) {
  Pair pair;
  pair.strikes().arm(Stream::kv, {.kind = Kind::delay, .from = kPeersRank, .late_ns = kAnHour_ns});
  const Ticket ticket = pair.pass(Stream::kv, 100);
  pair.hesitate();
  EXPECT_FALSE(pair.is_here(Stream::kv, ticket));
  EXPECT_FALSE(pair.is_here(Stream::kv, ticket));
  EXPECT_TRUE(pair.late().withholds(0));
}

TEST(DelayTransport, AStrikeHoldsUpTheNextMessageOfItsStreamAndNoOther) {
  Pair pair;
  EXPECT_TRUE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 100)));
  pair.strikes().arm(Stream::kv, {.kind = Kind::delay, .from = kPeersRank, .late_ns = kAnHour_ns});
  EXPECT_TRUE(pair.is_here(Stream::weights, pair.pass(Stream::weights, 100)));
  EXPECT_FALSE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 100)));
  EXPECT_TRUE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 100)));
}

TEST(DelayTransport, WhatIsForAnotherRankOrAlreadyOverOrNobodysMessageIsNotHeldUp) {
  Pair pair;
  pair.strikes().arm(Stream::kv, {.kind = Kind::delay, .from = kPeersRank + 1, .late_ns = kAnHour_ns});
  EXPECT_TRUE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 100)));
  pair.strikes().disarm(Stream::kv);
  pair.strikes().arm(Stream::kv, {.kind = Kind::corrupt, .from = kPeersRank, .late_ns = kAnHour_ns});
  EXPECT_TRUE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 100)));
  pair.strikes().disarm(Stream::kv);
  pair.strikes().arm(Stream::kv, {.kind = Kind::delay, .from = Strike::kAnyRank, .late_ns = kAnHour_ns});
  EXPECT_TRUE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 100, Purpose::none)));
  EXPECT_TRUE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 0)));
  EXPECT_FALSE(pair.is_here(Stream::kv, pair.pass(Stream::kv, 100)));
}

TEST(DelayTransport, StrikesAreToldOfOnce) {
  Pair pair;
  std::vector<fault::FaultEvent> events;
  pair.strikes().on_event = [&](const fault::FaultEvent& event) { events.push_back(event); };
  pair.strikes().arm(Stream::kv, {.kind = Kind::delay, .fault = 3, .from = kPeersRank, .late_ns = 1'500'000});
  const Ticket ticket = pair.pass(Stream::kv, 100);
  pair.is_here(Stream::kv, ticket);
  pair.is_here(Stream::kv, ticket);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].fault, 3U);
  EXPECT_EQ(events[0].from, kPeersRank);
  EXPECT_EQ(events[0].bytes, 100U);
  EXPECT_EQ(events[0].what, "it comes 1.5 ms later");
}

TEST(DelayTransport, ASlowLinkTakesBytesOverItsSpeed) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr auto kTravel_ns = static_cast<std::uint64_t>(kBytes * 1000);  // at 10⁻³ bytes a nanosecond
  Pair pair({0.001});
  const Ticket ticket = pair.pass(Stream::kv, kBytes);
  const std::uint64_t before = posix::now_ns();
  EXPECT_FALSE(pair.is_here(Stream::kv, ticket));
  const std::uint64_t after = posix::now_ns();
  const std::uint64_t due = pair.late().arm();
  pair.late().disarm();
  EXPECT_GE(due, before + kTravel_ns);
  EXPECT_LE(due, after + kTravel_ns);
}

TEST(DelayTransport, ASlowLinkCarriesOneMessageAtATimeWhateverItsStream) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::uint64_t kTravel_ns = 20'000'000;
  Pair pair({static_cast<double>(kBytes) / kTravel_ns});
  const std::uint64_t begin = posix::now_ns();
  const std::pair<Stream, Ticket> messages[] = {{Stream::kv, pair.pass(Stream::kv, kBytes)},
                                                {Stream::weights, pair.pass(Stream::weights, kBytes)}};
  std::uint64_t travel = 0;
  for (const auto& [stream, ticket] : messages) {
    pair.late().progress();  // sees what has come, on all lanes
    while (!pair.is_here(stream, ticket)) ASSERT_LT(posix::now_ns(), begin + 60'000'000'000);
    travel += kTravel_ns;
    EXPECT_GE(posix::now_ns(), begin + travel - 1000);
  }
}

/// The DelayTransport carries out its strike while the decorator around it holds another of the same message.
TEST(DelayTransport, ADelayAndADamageMayStrikeTheSameMessage) {
  Pair pair;
  fault::DamagedArrivals arrivals;
  fault::DamageTransport damaged(pair.late(), pair.strikes(), {kPeersRank}, arrivals);
  std::vector<std::size_t> told;
  pair.strikes().on_event = [&](const fault::FaultEvent& event) { told.push_back(event.fault); };
  pair.strikes().arm(Stream::kv, {.kind = Kind::delay, .fault = 5, .from = kPeersRank, .late_ns = 1000});
  pair.strikes().arm(Stream::kv, {.kind = Kind::corrupt, .fault = 6, .from = kPeersRank});
  pair.strikes().arm(Stream::kv, {.kind = Kind::corrupt, .fault = 7, .from = kPeersRank});
  const Ticket ticket = pair.pass_to(damaged, Stream::kv, 100);
  while (damaged.test_receive({0, Stream::kv}, ticket) == Outcome::pending) continue;
  EXPECT_EQ(told, (std::vector<std::size_t>{5, 6}));
  ASSERT_TRUE(pair.strikes().due(Kind::corrupt, Stream::kv, kPeersRank));
  EXPECT_EQ(pair.strikes().due(Kind::corrupt, Stream::kv, kPeersRank)->fault, 7U);
}

TEST(DelayTransport, DelaysAddUpAndTheSlowestSpeedHolds) {
  constexpr std::size_t kBytes = 1000;
  Pair pair({0.001, 0.1});
  for (const std::uint64_t late_ns : {5'000'000'000U, 7'000'000'000U})
    pair.strikes().arm(Stream::kv, {.kind = Kind::delay, .from = kPeersRank, .late_ns = late_ns});
  const Ticket ticket = pair.pass(Stream::kv, kBytes);
  const std::uint64_t before = posix::now_ns();
  EXPECT_FALSE(pair.is_here(Stream::kv, ticket));
  const std::uint64_t due = pair.late().arm();
  pair.late().disarm();
  EXPECT_GE(due, before + kBytes * 1000 + 12'000'000'000);
  EXPECT_LE(due, posix::now_ns() + kBytes * 1000 + 12'000'000'000);
}

}  // namespace
}  // namespace tsprun::detail::delay_transport_test
