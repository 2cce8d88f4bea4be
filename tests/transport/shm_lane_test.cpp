// Lanes over shared memory, through the Transport interface: two ranks driven by one thread where order matters, by two where
// speed does, and a peer that writes nonsense.

#include "tests/support/oracle.h"
#include "transport/cause.h"
#include "transport/posix.h"
#include "transport/shm/lane.h"
#include "transport/shm/shm_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::shm_lane_test {
namespace {

using shm::NodeMemory;
using test::mix;

NodeMemory make_memory(std::uint32_t ranks) {
  shm::NodeLayout layout;
  layout.local_ranks = layout.world_size = ranks;
  layout.heap_bytes = 64ULL << 20;
  return NodeMemory::create_memfd(layout);
}

Envelope envelope_of(std::uint32_t sequence, Purpose purpose = Purpose::other) { return {0xabcd, sequence, 7, purpose}; }

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mix(seed, i / 8) >> (i % 8 * 8));
}
bool holds(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::vector<std::byte> expected(bytes.size());
  fill(expected, seed);
  return std::equal(bytes.begin(), bytes.end(), expected.begin());
}

/// Two connected ranks.
class ShmLane : public testing::Test {
 protected:
  ShmLane() {
    for (int rank : {0, 1}) transport(rank).register_memory(memory_.heap(rank));
  }

  Endpoint& transport(int rank) { return rank == 0 ? *zero_ : *one_; }
  std::span<std::byte> heap(int rank, std::size_t offset, std::size_t bytes) const {
    return memory_.heap(rank).subspan(offset, bytes);
  }
  /// Looks until the outcome is another than pending, as both sides make progress.
  Outcome settle(const std::function<Outcome()>& look) {
    for (int i = 0; i < 1000; ++i) {
      if (const Outcome outcome = look(); outcome != Outcome::pending) return outcome;
      zero_->progress();
      one_->progress();
    }
    return Outcome::pending;
  }
  Outcome settle_receive(LaneId lane, Ticket ticket) {
    return settle([&] { return one_->test_receive(lane, ticket); });
  }

  static constexpr LaneId kToOne{1, Stream::kv};
  static constexpr LaneId kFromZero{0, Stream::kv};

  NodeMemory memory_ = make_memory(2);
  std::unique_ptr<Endpoint> zero_ = std::make_unique<shm::ShmTransport>(memory_, 0);
  std::unique_ptr<Endpoint> one_ = std::make_unique<shm::ShmTransport>(memory_, 1);
};

const std::size_t kSizes[] = {0, 1, 8, 24, 25, 128, 129, 1000, 8191, 8192, 8193, 32768, 40961, 1 << 20, (5 << 20) + 3};

TEST_F(ShmLane, MessagesOfAllSizesArriveFromTheHeap) {
  std::uint32_t sequence = 0;
  for (std::size_t bytes : kSizes) {
    ++sequence;
    const std::span<std::byte> payload = heap(0, 4096 + 3, bytes);
    fill(payload, sequence);
    const Ticket sent = zero_->send(kToOne, envelope_of(sequence), payload);
    ASSERT_NE(sent, kNotNow);
    std::vector<std::byte> into(bytes + 2, std::byte{0xee});
    const Ticket posted = one_->receive(kFromZero, envelope_of(sequence), std::span(into).subspan(1, bytes));
    ASSERT_NE(posted, kNotNow);
    EXPECT_EQ(settle_receive(kFromZero, posted), Outcome::done) << bytes;
    EXPECT_EQ(settle([&] { return zero_->test_send(kToOne, sent); }), Outcome::done) << bytes;
    EXPECT_TRUE(holds(std::span(into).subspan(1, bytes), sequence)) << bytes;
    EXPECT_EQ(into.front(), std::byte{0xee});
    EXPECT_EQ(into.back(), std::byte{0xee});
  }
}

TEST_F(ShmLane, ReceivesMayBePostedFirst) {
  std::vector<std::vector<std::byte>> buffers;
  std::vector<Ticket> tickets;
  std::uint32_t sequence = 0;
  for (std::size_t bytes : kSizes) {
    buffers.emplace_back(bytes);
    tickets.push_back(one_->receive(kFromZero, envelope_of(++sequence), buffers.back()));
    ASSERT_NE(tickets.back(), kNotNow);
    EXPECT_EQ(one_->test_receive(kFromZero, tickets.back()), Outcome::pending);
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::span<std::byte> payload = heap(0, 0, buffers[i].size());
    fill(payload, i + 1);
    const Ticket sent = zero_->send(kToOne, envelope_of(static_cast<std::uint32_t>(i + 1)), payload);
    ASSERT_NE(sent, kNotNow);
    EXPECT_EQ(settle_receive(kFromZero, tickets[i]), Outcome::done) << buffers[i].size();
    EXPECT_EQ(settle([&] { return zero_->test_send(kToOne, sent); }), Outcome::done);
    EXPECT_TRUE(holds(buffers[i], i + 1)) << buffers[i].size();
  }
}

TEST_F(ShmLane, PlainMemoryIsGoodUpToTheLimit) {
  std::vector<std::byte> payload(zero_->plain_limit());
  const shm::ShmTransport alike(memory_, 0);
  EXPECT_FALSE(alike.is_registered(payload));
  EXPECT_TRUE(alike.is_registered(heap(0, 100, 1 << 20)));
  EXPECT_FALSE(alike.is_registered(heap(1, 100, 1 << 20)));
  fill(payload, 1);
  const Ticket sent = zero_->send(kToOne, envelope_of(1), payload);
  ASSERT_NE(sent, kNotNow);
  // Copied away: it's ours again at once.
  EXPECT_EQ(zero_->test_send(kToOne, sent), Outcome::done);
  fill(payload, 2);
  std::vector<std::byte> into(payload.size());
  EXPECT_EQ(settle_receive(kFromZero, one_->receive(kFromZero, envelope_of(1), into)), Outcome::done);
  EXPECT_TRUE(holds(into, 1));
}

TEST_F(ShmLane, ALargeMessageIsTheSendersUntilItIsTaken) {
  const std::span<std::byte> payload = heap(0, 0, 1 << 20);
  const Ticket sent = zero_->send(kToOne, envelope_of(1), payload);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(zero_->test_send(kToOne, sent), Outcome::pending);
  std::vector<std::byte> into(payload.size());
  EXPECT_EQ(settle_receive(kFromZero, one_->receive(kFromZero, envelope_of(1), into)), Outcome::done);
  EXPECT_EQ(settle([&] { return zero_->test_send(kToOne, sent); }), Outcome::done);
}

TEST_F(ShmLane, RunsOutOfCreditAndRecovers) {
  for (std::size_t bytes :
       {std::size_t{0}, std::size_t{8}, std::size_t{25}, std::size_t{128}, std::size_t{3000}, std::size_t{8192}}) {
    std::vector<std::byte> payload(bytes);
    static std::uint32_t sequence = 0;
    static std::uint32_t received = 0;
    for (int round = 0; round < 5; ++round) {
      int in_flight = 0;
      for (;; ++in_flight) {
        fill(payload, sequence + 1);
        if (zero_->send(kToOne, envelope_of(sequence + 1), payload) == kNotNow) break;
        ++sequence;
        ASSERT_LT(in_flight, 100'000) << "credits never end";
      }
      EXPECT_GT(in_flight, 0);
      while (received < sequence) {
        ++received;
        std::vector<std::byte> into(bytes);
        const Ticket posted = one_->receive(kFromZero, envelope_of(received), into);
        ASSERT_NE(posted, kNotNow);
        ASSERT_EQ(settle_receive(kFromZero, posted), Outcome::done);
        ASSERT_TRUE(holds(into, received));
      }
    }
  }
}

TEST_F(ShmLane, ADryLaneDoesNotHoldUpOthers) {
  while (zero_->send(kToOne, envelope_of(1), {}) != kNotNow) {
  }
  for (Stream stream : {Stream::control, Stream::weights, Stream::gradients}) {
    const Ticket sent = zero_->send({1, stream}, envelope_of(9), {});
    EXPECT_NE(sent, kNotNow);
    EXPECT_EQ(settle_receive({0, stream}, one_->receive({0, stream}, envelope_of(9), {})), Outcome::done);
  }
  const Ticket back = one_->send(kFromZero, envelope_of(3), {});
  EXPECT_NE(back, kNotNow);
  EXPECT_EQ(settle([&] { return zero_->test_receive(kToOne, zero_->receive(kToOne, envelope_of(3), {})); }), Outcome::done);
}

TEST_F(ShmLane, ViewsShowTheSendersMemoryUntilReleased) {
  ASSERT_TRUE(one_->can_view(0));
  std::uint32_t sequence = 0;
  for (std::size_t bytes : kSizes) {
    ++sequence;
    const std::span<std::byte> payload = heap(0, 64, bytes);
    fill(payload, sequence);
    const Ticket sent = zero_->send(kToOne, envelope_of(sequence), payload, Delivery::by_reference);
    ASSERT_NE(sent, kNotNow);
    const Ticket viewed = one_->view(kFromZero, envelope_of(sequence), bytes);
    ASSERT_NE(viewed, kNotNow);
    ASSERT_EQ(settle_receive(kFromZero, viewed), Outcome::done);
    EXPECT_TRUE(holds(one_->access(kFromZero, viewed, 0, bytes), sequence)) << bytes;
    if (bytes > 10) {
      const std::span<const std::byte> part = one_->access(kFromZero, viewed, 3, bytes - 10);
      EXPECT_EQ(std::memcmp(part.data(), payload.data() + 3, part.size()), 0);
    }
    if (bytes > shm::kInlineBytes) {
      EXPECT_EQ(zero_->test_send(kToOne, sent), Outcome::pending) << bytes;
    }
    one_->release(kFromZero, viewed);
    EXPECT_EQ(settle([&] { return zero_->test_send(kToOne, sent); }), Outcome::done) << bytes;
  }
}

// A payload beside its slot isn't overwritten while it is viewed, however much is sent meanwhile.
TEST_F(ShmLane, AViewOfACopiedMessageHoldsItsPlace) {
  std::vector<std::byte> payload(100);
  fill(payload, 1);
  ASSERT_NE(zero_->send(kToOne, envelope_of(1), payload), kNotNow);
  const Ticket viewed = one_->view(kFromZero, envelope_of(1), payload.size());
  ASSERT_EQ(settle_receive(kFromZero, viewed), Outcome::done);
  std::uint32_t sequence = 1;
  for (;; ++sequence) {
    fill(payload, sequence + 1);
    if (zero_->send(kToOne, envelope_of(sequence + 1), payload) == kNotNow) break;
    ASSERT_LT(sequence, 1000U) << "credits never end";
  }
  EXPECT_EQ(sequence, shm::kSlots);
  EXPECT_TRUE(holds(one_->access(kFromZero, viewed, 0, 100), 1));
  one_->release(kFromZero, viewed);
  for (std::uint32_t i = 2; i <= sequence; ++i) {
    std::vector<std::byte> into(100);
    ASSERT_EQ(settle_receive(kFromZero, one_->receive(kFromZero, envelope_of(i), into)), Outcome::done);
    EXPECT_TRUE(holds(into, i)) << i;
  }
  EXPECT_NE(zero_->send(kToOne, envelope_of(sequence + 1), payload), kNotNow);
}

TEST_F(ShmLane, ViewsMayBeReleasedInAnyOrder) {
  Ticket sent[3];
  Ticket viewed[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    const std::span<std::byte> payload = heap(0, i * 100'000, 100'000);
    fill(payload, i);
    sent[i] = zero_->send(kToOne, envelope_of(i + 1), payload, Delivery::by_reference);
    viewed[i] = one_->view(kFromZero, envelope_of(i + 1), payload.size());
  }
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_EQ(settle_receive(kFromZero, viewed[i]), Outcome::done);
  one_->release(kFromZero, viewed[2]);
  one_->release(kFromZero, viewed[0]);
  EXPECT_EQ(zero_->test_send(kToOne, sent[1]), Outcome::pending);
  EXPECT_TRUE(holds(one_->access(kFromZero, viewed[1], 0, 100'000), 1));
  one_->release(kFromZero, viewed[1]);
  for (Ticket ticket : sent) EXPECT_EQ(settle([&] { return zero_->test_send(kToOne, ticket); }), Outcome::done);
}

TEST_F(ShmLane, AnotherMessageIsAMismatchBeforeAnyByteArrives) {
  const Envelope sent = envelope_of(4);
  Envelope signature = sent, sequence = sent, tag = sent;
  signature.signature ^= 1ULL << 63;
  sequence.sequence = 5;
  tag.tag = 8;
  for (std::size_t bytes : {std::size_t{16}, std::size_t{5000}, std::size_t{200'000}}) {
    for (const Envelope& expected : {signature, sequence, tag, sent}) {
      for (bool by_view : {false, true}) {
        NodeMemory memory = make_memory(2);
        shm::ShmTransport sender(memory, 0);
        shm::ShmTransport receiver(memory, 1);
        sender.register_memory(memory.heap(0));
        ASSERT_NE(sender.send(kToOne, sent, memory.heap(0).first(bytes), Delivery::copy_if_small), kNotNow);
        // The last of the list matches but for its size.
        std::vector<std::byte> into(expected.matches(sent) ? bytes + 1 : bytes, std::byte{0x77});
        const Ticket posted =
            by_view ? receiver.view(kFromZero, expected, into.size()) : receiver.receive(kFromZero, expected, into);
        EXPECT_EQ(receiver.test_receive(kFromZero, posted), Outcome::mismatch);
        const Found found = receiver.found(kFromZero);
        EXPECT_TRUE(found.envelope.matches(sent));
        EXPECT_EQ(found.bytes, bytes);
        EXPECT_TRUE(std::all_of(into.begin(), into.end(), [](std::byte byte) { return byte == std::byte{0x77}; }));
        EXPECT_EQ(receiver.test_receive(kFromZero, posted), Outcome::mismatch) << "a second look sees the same";
      }
    }
  }
}

TEST_F(ShmLane, CountsPayloadByPurpose) {
  const std::span<std::byte> payload = heap(0, 0, 50'000);
  zero_->send(kToOne, envelope_of(1, Purpose::kv), payload);
  zero_->send(kToOne, envelope_of(2, Purpose::weights), payload.first(10));
  zero_->send(kToOne, envelope_of(3, Purpose::weights), payload, Delivery::by_reference);
  std::vector<std::byte> into(50'000);
  // Purposes are each side's own words.
  EXPECT_EQ(settle_receive(kFromZero, one_->receive(kFromZero, envelope_of(1, Purpose::kv), into)), Outcome::done);
  EXPECT_EQ(settle_receive(kFromZero, one_->receive(kFromZero, envelope_of(2, Purpose::head), std::span(into).first(10))),
            Outcome::done);
  const Ticket viewed = one_->view(kFromZero, envelope_of(3, Purpose::weights), 50'000);
  EXPECT_EQ(settle_receive(kFromZero, viewed), Outcome::done);
  one_->access(kFromZero, viewed, 100, 40'000);
  one_->release(kFromZero, viewed);
  auto of = [](const std::uint64_t(&counters)[kPurposes + 2], Purpose purpose) {
    return counters[static_cast<std::size_t>(purpose)];
  };
  EXPECT_EQ(of(one_->counters().received, Purpose::kv), 50'000U);
  EXPECT_EQ(of(one_->counters().received, Purpose::head), 10U);
  EXPECT_EQ(of(one_->counters().received, Purpose::weights), 40'000U) << "of a view, what was accessed";
  EXPECT_EQ(of(zero_->counters().sent, Purpose::kv), 50'000U);
  EXPECT_EQ(of(zero_->counters().received, Purpose::kv), 0U);
}

TEST_F(ShmLane, RefusesToRegisterMemoryOutsideOfTheHeap) {
  std::vector<std::byte> plain(100);
  EXPECT_THROW(zero_->register_memory(plain), Error);
  EXPECT_THROW(zero_->register_memory(heap(1, 0, 100)), Error);
}

// A peer whose slots hold nonsense: an error, never an access outside of what it may touch.
TEST_F(ShmLane, WildSlotsAreCorrupt) {
  struct Wild {
    std::uint64_t bytes;
    std::uint64_t kind;
    std::uint64_t where;
  };
  constexpr auto kind = [](shm::SlotKind value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t heap_bytes = memory_.layout().heap_bytes;
  const Wild cases[] = {
      {1000, kind(shm::SlotKind::in_slot), 0},
      {25, kind(shm::SlotKind::in_slot), 0},
      {shm::kSmallBytes + 1, kind(shm::SlotKind::beside_slot), 0},
      {1000, kind(shm::SlotKind::in_ring), shm::kRingBytes - 999},
      {1000, kind(shm::SlotKind::in_ring), ~0ULL - 10},
      {1000, kind(shm::SlotKind::in_ring), 1ULL << 63},
      {1000, kind(shm::SlotKind::in_heap), heap_bytes - 999},
      {1000, kind(shm::SlotKind::in_heap), heap_bytes},
      {1000, kind(shm::SlotKind::in_heap), ~0ULL - 500},
      {1000, kind(shm::SlotKind::in_heap) + 1, 0},
      {1000, 0, 0},
      {1000, 99, 0},
      {1000, ~0ULL, 0},
  };
  for (const Wild& wild : cases) {
    for (bool by_view : {false, true}) {
      NodeMemory memory = make_memory(2);
      shm::ShmTransport sender(memory, 0);
      shm::ShmTransport receiver(memory, 1);
      auto* lane = reinterpret_cast<shm::LaneMemory*>(memory.lane(1, 0, Stream::kv));
      // Message 1 may lie in any slot that the layout says; all bear the same nonsense.
      for (shm::Place& place : lane->places) {
        shm::Slot& slot = place.slot;
        slot.bytes = wild.bytes;
        slot.signature = envelope_of(1).signature;
        slot.sequence = 1;
        slot.tag = envelope_of(1).tag;
        std::memcpy(&slot.kind, &wild.kind, sizeof wild.kind);
        slot.where = wild.where;
        slot.flag.store(1);
      }
      std::vector<std::byte> into(wild.bytes, std::byte{0x11});
      const Ticket posted =
          by_view ? receiver.view(kFromZero, envelope_of(1), into.size()) : receiver.receive(kFromZero, envelope_of(1), into);
      const Outcome outcome = receiver.test_receive(kFromZero, posted);
      EXPECT_TRUE(outcome == Outcome::corrupt || outcome == Outcome::mismatch)
          << "kind " << wild.kind << ", where " << wild.where << ": " << static_cast<int>(outcome);
      EXPECT_TRUE(std::all_of(into.begin(), into.end(), [](std::byte byte) { return byte == std::byte{0x11}; }));
    }
  }
}

// Two threads, all streams at once, sizes on both sides of every limit, the ring wrapping thousands of times.
TEST(ShmLaneTraffic, OfTwoThreadsArrivesWholeAndInOrder) {
  constexpr std::uint32_t kMessages = 20'000;
  NodeMemory memory = make_memory(2);
  auto size_of_message = [](int stream, std::uint32_t i) {
    const std::uint64_t bits = mix(static_cast<std::uint64_t>(stream), i);
    const std::size_t limits[] = {25, 200, 9000, 20'000};
    return bits % limits[(bits >> 32) % (i % 64 == 0 ? 4 : 3)];
  };
  std::thread sender([&] {
    shm::ShmTransport transport(memory, 0);
    transport.register_memory(memory.heap(0));
    std::uint32_t next[kStreams] = {};
    Ticket last[kStreams] = {};
    std::vector<std::byte> payload;
    for (bool busy = true; busy;) {
      busy = false;
      for (int stream = 0; stream < kStreams; ++stream) {
        const LaneId lane{1, static_cast<Stream>(stream)};
        if (next[stream] == kMessages) continue;
        busy = true;
        const std::size_t bytes = size_of_message(stream, next[stream]);
        // Each lane has one place in the heap, free again once its last message is done.
        if (last[stream] != kNotNow && transport.test_send(lane, last[stream]) != Outcome::done) continue;
        const std::span<std::byte> place = memory.heap(0).subspan(static_cast<std::size_t>(stream) << 20, bytes);
        fill(place, mix(static_cast<std::uint64_t>(stream), next[stream], 3));
        const Ticket ticket = transport.send(lane, envelope_of(next[stream] + 1), place, Delivery::copy_if_small);
        if (ticket == kNotNow) {
          std::this_thread::yield();
          continue;
        }
        last[stream] = ticket;
        ++next[stream];
      }
    }
  });
  shm::ShmTransport transport(memory, 1);
  std::uint32_t next[kStreams] = {};
  Ticket posted[kStreams] = {};
  std::vector<std::byte> into[kStreams];
  for (bool busy = true; busy;) {
    busy = false;
    for (int stream = 0; stream < kStreams; ++stream) {
      const LaneId lane{0, static_cast<Stream>(stream)};
      if (next[stream] == kMessages) continue;
      busy = true;
      if (posted[stream] == kNotNow) {
        into[stream].assign(size_of_message(stream, next[stream]), std::byte{0});
        posted[stream] = transport.receive(lane, envelope_of(next[stream] + 1), into[stream]);
        ASSERT_NE(posted[stream], kNotNow);
      }
      const Outcome outcome = transport.test_receive(lane, posted[stream]);
      if (outcome == Outcome::pending) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_EQ(outcome, Outcome::done) << "message " << next[stream] << " of stream " << stream;
      ASSERT_TRUE(holds(into[stream], mix(static_cast<std::uint64_t>(stream), next[stream], 3))) << "message " << next[stream];
      posted[stream] = kNotNow;
      ++next[stream];
    }
  }
  sender.join();
}

}  // namespace
}  // namespace tsprun::detail::shm_lane_test
