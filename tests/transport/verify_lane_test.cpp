// Lanes whose payloads are checked: what is whole arrives as ever, what is damaged is found before it may be used.

#include "tests/support/damage.h"
#include "tests/support/oracle.h"
#include "transport/shm/shm_transport.h"
#include "transport/verify/verify_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::verify_lane_test {
namespace {

using test::DamagingTransport;
using test::mix;
using verify::VerifyTransport;

constexpr Ticket kNone = ~Ticket{0};
constexpr LaneId kToOne{1, Stream::kv};
constexpr LaneId kFromZero{0, Stream::kv};

Envelope envelope_of(std::uint32_t sequence) { return {0xabcd, sequence, 7, Purpose::kv}; }

/// Rank 0 sends to rank 1, on whose side message `damaged` (as the lane below counts) is damaged.
class Pair {
 public:
  explicit Pair(Ticket damaged = kNone, std::size_t byte = 0)
      : memory_(shm::NodeMemory::create_memfd({.local_ranks = 2, .heap_bytes = 64 << 20, .world_size = 2})),
        shm_zero_(memory_, 0),
        shm_one_(memory_, 1),
        damaging_(shm_one_, damaged, byte),
        zero(shm_zero_),
        one(damaging_) {}

  std::span<std::byte> heap(int rank, std::size_t bytes, std::size_t offset = 0) {
    return memory_.heap(rank).subspan(offset, bytes);
  }
  const TrafficCounters& counters(int rank) const { return (rank == 0 ? shm_zero_ : shm_one_).counters(); }

 private:
  shm::NodeMemory memory_;
  shm::ShmTransport shm_zero_;
  shm::ShmTransport shm_one_;
  DamagingTransport damaging_;

 public:
  VerifyTransport zero;
  VerifyTransport one;
};

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mix(seed, i));
}

enum class Kind { message, view };

/// One payload of that kind and size; what rank 1 finds. `holds`: the bytes are those that were sent.
struct Result {
  Outcome outcome = Outcome::pending;
  bool holds = false;
  std::string detail;
};
Result transfer(Pair& pair, Kind kind, std::size_t bytes, std::uint32_t sequence) {
  const std::span<std::byte> from = pair.heap(0, bytes);
  const std::span<std::byte> to = pair.heap(1, bytes);
  fill(from, sequence);
  const std::vector<std::byte> sent(from.begin(), from.end());
  const Envelope envelope = envelope_of(sequence);
  Ticket expected = kNotNow;
  switch (kind) {
    case Kind::message:
      expected = pair.one.receive(kFromZero, envelope, to);
      EXPECT_NE(pair.zero.send(kToOne, envelope, from, Delivery::copy_if_small), kNotNow);
      break;
    case Kind::view:
      expected = pair.one.view(kFromZero, envelope, bytes);
      EXPECT_NE(pair.zero.send(kToOne, envelope, from, Delivery::by_reference), kNotNow);
      break;
  }
  Result result;
  result.outcome = pair.one.test_receive(kFromZero, expected);
  result.detail = pair.one.found(kFromZero).detail;
  if (result.outcome != Outcome::done) return result;
  std::span<const std::byte> got = to;
  if (kind == Kind::view) got = pair.one.access(kFromZero, expected, 0, bytes);
  result.holds = std::ranges::equal(got, sent);
  if (kind == Kind::view) pair.one.release(kFromZero, expected);
  EXPECT_EQ(pair.zero.test_send(kToOne, sequence), Outcome::done);
  return result;
}

constexpr std::size_t kSizes[] = {0, 1, 16, 17, 24, 25, 4096, 8192, 8193, 1 << 20};

TEST(VerifyLane, WholePayloadsArriveAsEver) {
  for (const Kind kind : {Kind::message, Kind::view}) {
    Pair pair;
    std::uint32_t sequence = 0;
    std::uint64_t bytes = 0;
    for (int round = 0; round < 5; ++round) {
      for (const std::size_t size : kSizes) {
        const Result result = transfer(pair, kind, size, ++sequence);
        ASSERT_EQ(result.outcome, Outcome::done) << size;
        ASSERT_TRUE(result.holds) << size;
        bytes += size;
      }
    }
    const auto kv = static_cast<std::size_t>(Purpose::kv);
    EXPECT_EQ(pair.counters(0).sent[kv], bytes);
    EXPECT_EQ(pair.counters(1).received[kv], bytes);
    EXPECT_EQ(pair.counters(1).received[static_cast<std::size_t>(Purpose::other)], 0U);
  }
}

TEST(VerifyLane, ADamagedByteIsFoundWhereverItLies) {
  for (const Kind kind : {Kind::message, Kind::view}) {
    for (const std::size_t size : kSizes) {
      for (const std::size_t byte : {std::size_t{0}, size / 2, size - 1}) {
        if (size == 0) continue;
        Pair pair(4, byte);  // the second payload
        EXPECT_TRUE(transfer(pair, kind, size, 1).holds);
        const Result result = transfer(pair, kind, size, 2);
        ASSERT_EQ(result.outcome, Outcome::corrupt) << size << " bytes, damaged at " << byte;
        EXPECT_NE(result.detail.find("XXH3"), std::string::npos) << result.detail;
        EXPECT_NE(result.detail.find(std::to_string(size) + " bytes"), std::string::npos) << result.detail;
      }
    }
  }
}

TEST(VerifyLane, ADamagedAnnouncementIsFound) {
  Pair pair(3);
  EXPECT_TRUE(transfer(pair, Kind::message, 100, 1).holds);
  EXPECT_EQ(transfer(pair, Kind::message, 100, 2).outcome, Outcome::corrupt);
}

TEST(VerifyLane, AnotherMessageThanTheExpectedIsAMismatchThatNamesIt) {
  Pair pair;
  const std::span<std::byte> from = pair.heap(0, 4096);
  std::vector<std::byte> to(64, std::byte{42});
  const Ticket expected = pair.one.receive(kFromZero, envelope_of(1), to);
  pair.zero.send(kToOne, {0xdcba, 5, 9, Purpose::kv}, from, Delivery::copy_if_small);
  EXPECT_EQ(pair.one.test_receive(kFromZero, expected), Outcome::mismatch);
  const Found found = pair.one.found(kFromZero);
  EXPECT_EQ(found.envelope.signature, 0xdcbaU);
  EXPECT_EQ(found.envelope.sequence, 5U);
  EXPECT_EQ(found.bytes, 4096U);
  EXPECT_TRUE(std::ranges::all_of(to, [](std::byte b) { return b == std::byte{42}; }));
}

TEST(VerifyLane, AMessageOfAnotherLengthIsAMismatch) {
  Pair pair;
  std::vector<std::byte> to(64);
  const Ticket expected = pair.one.receive(kFromZero, envelope_of(1), to);
  pair.zero.send(kToOne, envelope_of(1), pair.heap(0, 65), Delivery::copy_if_small);
  EXPECT_EQ(pair.one.test_receive(kFromZero, expected), Outcome::mismatch);
}

// Credits end between an announcement and its payload, on both sides; nothing is lost, doubled or taken for another.
TEST(VerifyLane, MessagesBeyondTheCreditsGoWhenThereIsRoom) {
  Pair pair;
  constexpr std::uint32_t kMessages = 500;
  std::uint32_t sent = 0;
  std::uint32_t posted = 0;
  std::uint32_t arrived = 0;
  std::uint64_t state = 1;
  std::deque<std::pair<Ticket, std::vector<std::byte>>> expected;
  std::optional<std::vector<std::byte>> waiting;
  const auto size_of_message = [](std::uint32_t number) { return mix(9, number) % 8000; };
  while (arrived < kMessages) {
    state = mix(state);
    if (state % 3 == 0 && sent < kMessages) {
      std::vector<std::byte> payload(size_of_message(sent + 1));
      fill(payload, sent + 1);
      if (pair.zero.send(kToOne, envelope_of(sent + 1), payload, Delivery::copy_if_small) != kNotNow) ++sent;
    } else if (state % 3 == 1 && posted < kMessages) {
      // A buffer that finds no credit is offered again, the same one.
      if (!waiting) waiting.emplace(size_of_message(posted + 1));
      const Ticket ticket = pair.one.receive(kFromZero, envelope_of(posted + 1), *waiting);
      if (ticket == kNotNow) continue;
      ASSERT_EQ(ticket, ++posted);
      expected.emplace_back(ticket, std::move(*waiting));
      waiting.reset();
    } else if (!expected.empty()) {
      const Outcome outcome = pair.one.test_receive(kFromZero, expected.front().first);
      if (outcome == Outcome::pending) continue;
      ASSERT_EQ(outcome, Outcome::done);
      std::vector<std::byte> whole(size_of_message(++arrived));
      fill(whole, arrived);
      ASSERT_EQ(expected.front().second, whole);
      expected.pop_front();
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::verify_lane_test
