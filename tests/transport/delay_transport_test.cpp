// Links that are made slow: which messages a fault delays depends on its seed, the lane and the number of the message there
// alone, and a slow link takes bytes over its speed. Delays of an hour make "late" plain without a clock: what is pending was
// struck.

#include "transport/fault/delay_transport.h"
#include "tests/support/oracle.h"
#include "transport/posix.h"
#include "transport/shm/shm_transport.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsp::delay_transport_test {
namespace {

using fault::DelayTransport;
using fault::LinkFault;

constexpr Stream kAllStreams[] = {Stream::control, Stream::weights, Stream::kv, Stream::gradients};
constexpr int kMessages = 40;  // a lane
constexpr const char* kAnHour = "delay:from=0,to=1,ms=3600000";

/// Rank 0 sends to rank 1, whose arrivals from it `faults` (texts of --fault) delay.
class Pair {
 public:
  explicit Pair(const std::vector<std::string>& faults)
      : memory_(shm::NodeMemory::create_memfd({.local_ranks = 2, .heap_bytes = 64 << 20, .world_size = 2})),
        zero_(memory_, 0),
        one_(memory_, 1),
        late_(one_, {}, parsed(faults)) {}

  /// A message of `bytes` bytes is sent and asked for; the ticket of the receive.
  Ticket pass(Stream stream, std::size_t bytes) {
    const Envelope envelope{0xabcd, ++sent_[stream], 7, Purpose::kv};
    const Ticket ticket = late_.receive({0, stream}, envelope, memory_.heap(1).first(bytes));
    EXPECT_NE(ticket, kNotNow);
    EXPECT_NE(zero_.send({1, stream}, envelope, memory_.heap(0).first(bytes), Delivery::copy_if_small), kNotNow);
    return ticket;
  }
  bool is_here(Stream stream, Ticket ticket) {
    const Outcome outcome = late_.test_receive({0, stream}, ticket);
    EXPECT_TRUE(outcome == Outcome::done || outcome == Outcome::pending);
    return outcome == Outcome::done;
  }
  DelayTransport& late() { return late_; }

 private:
  static std::vector<LinkFault> parsed(const std::vector<std::string>& texts) {
    std::vector<LinkFault> faults;
    for (const std::string& text : texts) faults.push_back({.peer = 0, .spec = fault::parse(text)});
    return faults;
  }

  shm::NodeMemory memory_;
  shm::ShmTransport zero_;
  shm::ShmTransport one_;
  DelayTransport late_;
  std::map<Stream, std::uint32_t> sent_;
};

/// Of each lane's messages, those that were late when streams took their turns in the order that `order` draws.
std::map<Stream, std::vector<int>> late_messages(const std::string& fault, std::uint64_t order) {
  Pair pair({fault});
  std::map<Stream, std::vector<int>> late;
  std::map<Stream, int> passed;
  for (std::uint64_t turn = 0;
       late.size() < kStreams || std::ranges::any_of(passed, [](const auto& each) { return each.second < kMessages; }); ++turn) {
    const Stream stream = kAllStreams[test::mix(order, turn) % kStreams];
    late[stream];
    if (passed[stream] == kMessages) continue;
    const int number = ++passed[stream];
    const Ticket ticket = pair.pass(stream, 100);
    if (!pair.is_here(stream, ticket)) late[stream].push_back(number);
  }
  return late;
}

TEST(DelayTransport, TheSameMessagesAreLateInWhateverOrderStreamsMoveOn) {
  const std::string fault = fmt::format("{},prob=0.3,seed=5", kAnHour);
  const auto once = late_messages(fault, 1);
  std::size_t all = 0;
  for (const auto& [stream, late] : once) all += late.size();
  EXPECT_GT(all, 0U);
  EXPECT_LT(all, std::size_t{kStreams * kMessages});
  for (const std::uint64_t order : {1U, 2U, 3U}) EXPECT_EQ(late_messages(fault, order), once) << "order " << order;
}

TEST(DelayTransport, AnotherSeedStrikesOtherMessages) {
  const auto seeded = [](int seed) { return late_messages(fmt::format("{},prob=0.3,seed={}", kAnHour, seed), 1); };
  EXPECT_NE(seeded(5), seeded(6));
}

TEST(DelayTransport, LanesAreDrawnApart) {
  const auto late = late_messages(fmt::format("{},prob=0.3,seed=5", kAnHour), 1);
  EXPECT_NE(late.at(Stream::kv), late.at(Stream::weights));
}

TEST(DelayTransport, ProbabilityNoughtStrikesNoneAndOneStrikesAll) {
  for (const auto& [stream, late] : late_messages(fmt::format("{},prob=0", kAnHour), 1)) EXPECT_TRUE(late.empty());
  for (const auto& [stream, late] : late_messages(fmt::format("{},prob=1", kAnHour), 1)) EXPECT_EQ(late.size(), kMessages);
  for (const auto& [stream, late] : late_messages(kAnHour, 1)) EXPECT_EQ(late.size(), kMessages);
}

TEST(DelayTransport, ASlowLinkTakesBytesOverItsSpeed) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr auto kTravel_ns = static_cast<std::uint64_t>(kBytes * 1000);  // at 10⁻³ bytes a nanosecond
  Pair pair({"slow:from=0,to=1,gbps=0.001"});
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
  Pair pair({fmt::format("slow:from=0,to=1,gbps={}", static_cast<double>(kBytes) / kTravel_ns)});
  const std::uint64_t begin = posix::now_ns();
  const std::pair<Stream, Ticket> messages[] = {{Stream::kv, pair.pass(Stream::kv, kBytes)},
                                                {Stream::weights, pair.pass(Stream::weights, kBytes)}};
  std::uint64_t travel = 0;
  for (const auto& [stream, ticket] : messages) {
    pair.late().progress();  // sees what has come, on all lanes
    while (!pair.is_here(stream, ticket)) ASSERT_LT(posix::now_ns(), begin + 100 * kTravel_ns);
    travel += kTravel_ns;
    EXPECT_GE(posix::now_ns(), begin + travel - 1000);
  }
}

TEST(DelayTransport, SpeedAndLatencyOfFaultsAddUpAndTheSlowestHolds) {
  constexpr std::size_t kBytes = 1000;
  Pair pair(
      {"slow:from=0,to=1,gbps=0.001", "slow:from=0,to=1,gbps=0.1", "delay:from=0,to=1,ms=5000", "delay:from=0,to=1,ms=7000"});
  const Ticket ticket = pair.pass(Stream::kv, kBytes);
  const std::uint64_t before = posix::now_ns();
  EXPECT_FALSE(pair.is_here(Stream::kv, ticket));
  const std::uint64_t due = pair.late().arm();
  pair.late().disarm();
  EXPECT_GE(due, before + kBytes * 1000 + 12'000'000'000);
  EXPECT_LE(due, posix::now_ns() + kBytes * 1000 + 12'000'000'000);
}

}  // namespace
}  // namespace tsp::delay_transport_test
