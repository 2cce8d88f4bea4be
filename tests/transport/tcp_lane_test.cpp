// Lanes over tcp, through the Transport interface: two ranks on loopback driven by one thread where order matters, by two where
// speed does; with TLS and without.

#include "tests/transport/tcp_lanes.h"
#include "transport/cause.h"
#include "transport/posix.h"
#include "transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::tcp_lane_test {
namespace {

using tcp::TcpTransport;
using test::mix;

class TcpLane : public testing::TestWithParam<bool> {
 protected:
  TcpLane() { reset(); }
  void reset() {
    zero_ = std::make_unique<TcpTransport>(options_of(0, 2, GetParam()));
    one_ = std::make_unique<TcpTransport>(options_of(1, 2, GetParam()));
    zero_->connect(1, one_->address(0));
    one_->connect(0, zero_->address(1));
    EXPECT_TRUE(eventually([&] {
      const bool here = zero_->connected(1);
      return one_->connected(0) && here;
    }));
  }

  void both() {
    zero_->progress();
    one_->progress();
  }
  Outcome settle(const std::function<Outcome()>& look) {
    const std::uint64_t ends = posix::now_ns() + 60'000'000'000;
    while (posix::now_ns() < ends) {
      if (const Outcome outcome = look(); outcome != Outcome::pending) return outcome;
      both();
    }
    return Outcome::pending;
  }
  Outcome settle_receive(Ticket ticket, LaneId lane = kFromZero) {
    return settle([&] { return one_->test_receive(lane, ticket); });
  }
  Outcome settle_send(Ticket ticket, LaneId lane = kToOne) {
    return settle([&] { return zero_->test_send(lane, ticket); });
  }

  std::unique_ptr<TcpTransport> zero_;
  std::unique_ptr<TcpTransport> one_;
};

const std::size_t kSizes[] = {0,
                              1,
                              8,
                              63,
                              64,
                              1000,
                              tcp::kEagerBytes - 1,
                              tcp::kEagerBytes,
                              tcp::kEagerBytes + 1,
                              32768,
                              tcp::kPieceBytes - 1,
                              tcp::kPieceBytes,
                              tcp::kPieceBytes + 1,
                              (5 << 20) + 3};

TEST_P(TcpLane, MessagesOfAllSizesArrive) {
  std::uint64_t sequence = 0;
  for (const std::size_t bytes : kSizes) {
    for (const bool receive_first : {false, true}) {
      ++sequence;
      const std::vector<std::byte> payload = pattern(bytes, sequence);
      std::vector<std::byte> into(bytes + 2, std::byte{0xee});
      const auto where = std::span(into).subspan(1, bytes);
      Ticket posted = receive_first ? one_->receive(kFromZero, envelope_of(sequence), where) : kNotNow;
      const Ticket sent = zero_->send(kToOne, envelope_of(sequence), payload, Delivery::copy_if_small);
      ASSERT_NE(sent, kNotNow);
      if (!receive_first) {
        a_while([&] { both(); });
        EXPECT_EQ(into[bytes / 2 + 1], std::byte{0xee});
        posted = one_->receive(kFromZero, envelope_of(sequence), where);
      }
      EXPECT_EQ(settle_receive(posted), Outcome::done) << bytes;
      EXPECT_EQ(settle_send(sent), Outcome::done) << bytes;
      EXPECT_TRUE(std::equal(payload.begin(), payload.end(), where.begin())) << bytes;
      EXPECT_EQ(into.front(), std::byte{0xee});
      EXPECT_EQ(into.back(), std::byte{0xee});
    }
  }
}

TEST_P(TcpLane, ALargeMessageIsTheSendersUntilItsBufferIsPosted) {
  const std::vector<std::byte> payload = pattern(1 << 20, 1);
  const Ticket sent = zero_->send(kToOne, envelope_of(1), payload, Delivery::by_reference);
  a_while([&] { both(); });
  EXPECT_EQ(zero_->test_send(kToOne, sent), Outcome::pending);
  std::vector<std::byte> into(payload.size());
  EXPECT_EQ(settle_receive(one_->receive(kFromZero, envelope_of(1), into)), Outcome::done);
  EXPECT_EQ(settle_send(sent), Outcome::done);
  EXPECT_EQ(into, payload);
}

TEST_P(TcpLane, RunsOutOfCreditAndRecovers) {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{3000}, tcp::kEagerBytes}) {
    for (int round = 0; round < 4; ++round) {
      int in_flight = 0;
      while (zero_->send(kToOne, envelope_of(sent + 1), pattern(bytes, sent + 1), Delivery::copy_if_small) != kNotNow) {
        ++sent;
        ASSERT_LT(++in_flight, 100'000) << "credits never end";
        both();
      }
      EXPECT_GT(in_flight, 4);
      while (received < sent) {
        std::vector<std::byte> into(bytes);
        ++received;
        const Ticket posted = one_->receive(kFromZero, envelope_of(received), into);
        ASSERT_NE(posted, kNotNow);
        ASSERT_EQ(settle_receive(posted), Outcome::done);
        ASSERT_EQ(into, pattern(bytes, received));
      }
      a_while([&] { both(); });
    }
  }
}

/// Each end waits for the stream that the other end has issued last; both messages are larger than any buffer on the way.
TEST_P(TcpLane, StreamsInOppositeOrderDoNotBlockEachOther) {
  const std::size_t bytes = 12 << 20;
  const std::vector<std::byte> weights = pattern(bytes, 1);
  const std::vector<std::byte> kv = pattern(bytes, 2);
  const Ticket first = zero_->send({1, Stream::weights}, envelope_of(1), weights, Delivery::copy_if_small);
  const Ticket second = zero_->send({1, Stream::kv}, envelope_of(1), kv, Delivery::copy_if_small);
  std::vector<std::byte> into(bytes);
  EXPECT_EQ(settle_receive(one_->receive({0, Stream::kv}, envelope_of(1), into), {0, Stream::kv}), Outcome::done);
  EXPECT_EQ(into, kv);
  EXPECT_EQ(settle_send(second, {1, Stream::kv}), Outcome::done);
  EXPECT_EQ(zero_->test_send({1, Stream::weights}, first), Outcome::pending);
  EXPECT_EQ(settle_receive(one_->receive({0, Stream::weights}, envelope_of(1), into), {0, Stream::weights}), Outcome::done);
  EXPECT_EQ(into, weights);
}

TEST_P(TcpLane, StreamsTakeTurns) {
  const std::vector<std::byte> payload = pattern(32 << 20, 1);
  const std::span<const std::byte> short_one = std::span(payload).first(2 * tcp::kPieceBytes);
  std::vector<std::byte> into(payload.size());
  std::vector<std::byte> short_into(short_one.size());
  const LaneId behind{0, Stream::gradients};
  const Ticket first = one_->receive(kFromZero, envelope_of(1), into);
  const Ticket second = one_->receive(behind, envelope_of(1), short_into);
  ASSERT_NE(zero_->send(kToOne, envelope_of(1), payload, Delivery::copy_if_small), kNotNow);
  ASSERT_NE(zero_->send({1, Stream::gradients}, envelope_of(1), short_one, Delivery::copy_if_small), kNotNow);
  EXPECT_EQ(settle_receive(second, behind), Outcome::done);
  EXPECT_EQ(one_->test_receive(kFromZero, first), Outcome::pending) << "the short message waited for the long one";
  EXPECT_EQ(settle_receive(first), Outcome::done);
}

TEST_P(TcpLane, ADryLaneDoesNotHoldUpOthers) {
  while (zero_->send(kToOne, envelope_of(1), pattern(5000, 1), Delivery::copy_if_small) != kNotNow) both();
  for (const Stream stream : {Stream::control, Stream::weights, Stream::gradients}) {
    EXPECT_NE(zero_->send({1, stream}, envelope_of(9), {}, Delivery::copy_if_small), kNotNow);
    EXPECT_EQ(settle_receive(one_->receive({0, stream}, envelope_of(9), {}), {0, stream}), Outcome::done);
  }
}

TEST_P(TcpLane, AMismatchIsFoundBeforeAnyByteArrives) {
  const std::size_t sizes[][2] = {{100, 100}, {100, 104}, {1 << 20, 1 << 20}, {1 << 20, 100}, {100, 1 << 20}};
  int stream = 0;
  for (const auto& [sent, expected] : sizes) {
    for (const bool receive_first : {false, true}) {
      reset();
      const LaneId lane{1, static_cast<Stream>(stream++ % kStreams)};
      const LaneId back{0, lane.stream};
      const std::vector<std::byte> payload = pattern(sent, 1);
      std::vector<std::byte> into(expected, std::byte{0xee});
      Envelope other = envelope_of(1);
      if (sent == expected) other.signature ^= 1;
      Ticket ticket = receive_first ? one_->receive(back, envelope_of(1), into) : kNotNow;
      zero_->send(lane, other, payload, Delivery::copy_if_small);
      a_while([&] { both(); });
      if (!receive_first) ticket = one_->receive(back, envelope_of(1), into);
      EXPECT_EQ(settle_receive(ticket, back), Outcome::mismatch) << sent << " " << expected;
      EXPECT_EQ(one_->found(back).bytes, sent);
      EXPECT_TRUE(one_->found(back).envelope.matches(other));
      EXPECT_EQ(into, std::vector<std::byte>(expected, std::byte{0xee}));
    }
  }
}

TEST_P(TcpLane, ManyMessagesBothWaysFromTwoThreads) {
  constexpr int kMessages = 3000;
  const auto run = [&](TcpTransport& me, int peer, std::uint64_t mine, std::uint64_t theirs) {
    struct Flying {
      Ticket ticket;
      std::vector<std::byte> bytes;
    };
    const auto size = [](std::uint64_t seed, int i) {
      return i % 100 == 0 ? std::size_t{600'000} : mix(seed, static_cast<std::uint64_t>(i)) % 20'000;
    };
    std::vector<Flying> out;
    std::vector<Flying> in;
    int sent = 0;
    int received = 0;
    int finished = 0;
    // The next to be sent and received, kept while there is no room for them.
    std::vector<std::byte> payload = pattern(size(mine, 0), mine);
    std::vector<std::byte> into(size(theirs, 0));
    const std::uint64_t ends = posix::now_ns() + 300'000'000'000;
    while ((finished < kMessages || sent < kMessages || !out.empty()) && posix::now_ns() < ends) {
      const LaneId lane{peer, Stream::gradients};
      if (sent < kMessages) {
        const Ticket ticket = me.send(lane, envelope_of(static_cast<std::uint64_t>(sent)), payload, Delivery::copy_if_small);
        if (ticket != kNotNow) {
          out.push_back({ticket, std::move(payload)});
          ++sent;
          payload = pattern(size(mine, sent), mine + static_cast<std::uint64_t>(sent));
        }
      }
      if (received < kMessages) {
        const Ticket ticket = me.receive(lane, envelope_of(static_cast<std::uint64_t>(received)), into);
        if (ticket != kNotNow) {
          in.push_back({ticket, std::move(into)});
          into = std::vector<std::byte>(size(theirs, ++received));
        }
      }
      me.progress();
      std::erase_if(out, [&](const Flying& each) { return me.test_send(lane, each.ticket) == Outcome::done; });
      while (!in.empty() && me.test_receive(lane, in.front().ticket) == Outcome::done) {
        if (in.front().bytes != pattern(size(theirs, finished), theirs + static_cast<std::uint64_t>(finished))) return false;
        in.erase(in.begin());
        ++finished;
      }
    }
    while (!(me.progress(), me.close(peer)) && posix::now_ns() < ends) {
    }
    return finished == kMessages;
  };
  bool right[2] = {};
  std::thread other([&] { right[1] = run(*one_, 0, 1'000'000, 0); });
  right[0] = run(*zero_, 1, 0, 1'000'000);
  other.join();
  EXPECT_TRUE(right[0]);
  EXPECT_TRUE(right[1]);
}

TEST_P(TcpLane, CountsPayloadByPurpose) {
  const std::vector<std::byte> payload(70'000);
  std::vector<std::byte> into(payload.size());
  zero_->send(kToOne, envelope_of(1, Purpose::kv), payload, Delivery::copy_if_small);
  EXPECT_EQ(settle_receive(one_->receive(kFromZero, envelope_of(1, Purpose::weights), into)), Outcome::done);
  EXPECT_EQ(zero_->counters().sent[static_cast<std::size_t>(Purpose::kv)], payload.size());
  EXPECT_EQ(one_->counters().received[static_cast<std::size_t>(Purpose::weights)], payload.size());
  EXPECT_FALSE(one_->can_view(0));
  EXPECT_THROW(one_->view(kFromZero, envelope_of(2), 8), Error);
}

TEST_P(TcpLane, WhatWasSentBeforeAnOrderlyEndArrives) {
  const std::vector<std::byte> small = pattern(9000, 1);
  const std::vector<std::byte> large = pattern(3 << 20, 2);
  std::vector<std::byte> into(large.size());
  zero_->send(kToOne, envelope_of(1), large, Delivery::copy_if_small);
  zero_->send(kToOne, envelope_of(2), small, Delivery::copy_if_small);
  const Ticket first = one_->receive(kFromZero, envelope_of(1), into);
  EXPECT_EQ(settle([&] { return zero_->close(1) ? Outcome::done : Outcome::pending; }), Outcome::done);
  zero_.reset();
  const auto alone = [&](Ticket ticket) {
    eventually([&] {
      one_->progress();
      return one_->test_receive(kFromZero, ticket) != Outcome::pending;
    });
    return one_->test_receive(kFromZero, ticket);
  };
  EXPECT_EQ(alone(first), Outcome::done);
  EXPECT_EQ(into, large);
  into.resize(small.size());
  EXPECT_EQ(alone(one_->receive(kFromZero, envelope_of(2), into)), Outcome::done);
  EXPECT_EQ(into, small);
  EXPECT_EQ(alone(one_->receive(kFromZero, envelope_of(3), into)), Outcome::disconnected);
  EXPECT_NE(one_->found(kFromZero).detail.find("good order"), std::string::npos) << one_->found(kFromZero).detail;
}

TEST_P(TcpLane, WhatThePeerHadTakenStaysDoneAfterItsEnd) {
  const std::vector<std::byte> payload = pattern(40'000, 1);
  std::vector<std::byte> into(payload.size());
  std::vector<Ticket> sent;
  for (std::uint64_t i = 0; i < 40; ++i) {
    sent.push_back(zero_->send(kToOne, envelope_of(i), payload, Delivery::by_reference));
    ASSERT_NE(sent.back(), kNotNow);
    ASSERT_EQ(settle_receive(one_->receive(kFromZero, envelope_of(i), into)), Outcome::done);
  }
  EXPECT_EQ(settle([&] { return one_->close(0) ? Outcome::done : Outcome::pending; }), Outcome::done);
  one_.reset();
  std::vector<std::byte> none(8);
  const Ticket in_vain = zero_->receive(kToOne, envelope_of(0), none);
  eventually([&] {
    zero_->progress();
    return zero_->test_receive(kToOne, in_vain) != Outcome::pending;
  });
  EXPECT_EQ(zero_->test_receive(kToOne, in_vain), Outcome::disconnected);
  for (const Ticket ticket : sent) EXPECT_EQ(zero_->test_send(kToOne, ticket), Outcome::done) << ticket;
  const Ticket lost = zero_->send(kToOne, envelope_of(40), payload, Delivery::by_reference);
  EXPECT_EQ(zero_->test_send(kToOne, lost), Outcome::disconnected);
  EXPECT_EQ(zero_->test_send(kToOne, sent.front()), Outcome::done);
}

TEST_P(TcpLane, ACutLaneHandsOutTicketsThatSaySo) {
  zero_.reset();
  std::vector<std::byte> bytes(100'000);
  const Ticket ticket = one_->receive(kFromZero, envelope_of(1), bytes);
  eventually([&] {
    one_->progress();
    return one_->test_receive(kFromZero, ticket) != Outcome::pending;
  });
  EXPECT_EQ(one_->test_receive(kFromZero, ticket), Outcome::disconnected);
  for (std::size_t size : {std::size_t{8}, bytes.size()}) {
    for (int i = 0; i < 100; ++i) {
      const Ticket sent = one_->send(kFromZero, envelope_of(1), std::span(bytes).first(size), Delivery::copy_if_small);
      ASSERT_NE(sent, kNotNow);
      ASSERT_EQ(one_->test_send(kFromZero, sent), Outcome::disconnected);
    }
  }
}

TEST(TcpAddress, BlobsThatAreNoneAreRefused) {
  TcpTransport zero(options_of(0));
  TcpTransport one(options_of(1));
  std::vector<std::byte> blob = zero.address(1);
  EXPECT_TRUE(one.can_reach(0, blob).possible);
  EXPECT_FALSE(one.can_reach(2, blob).possible);
  EXPECT_FALSE(one.can_reach(0, std::span(blob).first(31)).possible);
  blob[0] ^= std::byte{1};
  EXPECT_THROW(one.connect(0, blob), Error);
}

/// Every machine numbers its interfaces in its own way: the number of the sender's says nothing here.
TEST(TcpAddress, ALinkLocalOneIsReachedByTheInterfaceOfThisEndsOwn) {
  const tcp::SocketAddress theirs = tcp::resolve("fe80::1%7", 4711);
  tcp::SocketAddress where = tcp::unpack(tcp::pack(theirs, 0));
  EXPECT_EQ(where.print(), "[fe80::1]:4711");
  where.set_link(tcp::resolve("fd00::1", 0));
  EXPECT_EQ(where.print(), "[fe80::1]:4711");
  where.set_link(tcp::resolve("fe80::2%lo", 0));
  EXPECT_EQ(where.print(), "[fe80::1%lo]:4711");
  tcp::SocketAddress global = tcp::unpack(tcp::pack(tcp::resolve("fd00::2", 4711), 0));
  global.set_link(tcp::resolve("fe80::2%lo", 0));
  EXPECT_EQ(global.print(), "[fd00::2]:4711");
}

INSTANTIATE_TEST_SUITE_P(Tcp, TcpLane, testing::Bool(), name_of);

}  // namespace
}  // namespace tsprun::detail::tcp_lane_test
