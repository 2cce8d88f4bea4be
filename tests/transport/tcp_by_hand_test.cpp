// A tcp transport and a peer made by hand, which proves itself or doesn't, sends nonsense, or leaves; with TLS and without.

#include "tests/support/few_descriptors.h"
#include "tests/support/patience.h"
#include "tests/transport/tcp_lanes.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"
#include "transport/tcp/dial.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/tls/channel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <poll.h>
#include <span>
#include <string>
#include <sys/socket.h>
#include <sys/uio.h>
#include <thread>
#include <vector>

namespace tsprun::detail::tcp_lane_test {
namespace {

using bootstrap::ConnectionUse;
using tcp::FrameHeader;
using tcp::FrameKind;
using tcp::TcpTransport;

/// Rank 1, without lanes of its own.
class ByHand : public testing::TestWithParam<bool> {
 public:
  void dial(std::string_view secret = "of this test") {
    tcp::AddressBlob blob{};
    std::memcpy(&blob, zero_.address(1).data(), sizeof blob);
    const tcp::SocketAddress where = tcp::unpack(blob);
    posix::UniqueFd socket(::socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), where.get(), where.length), 0);
    peer_ =
        tls::Channel::connector(std::move(socket), {bootstrap::secret_from_text(secret), GetParam()}, ConnectionUse::lanes, 1, 0);
  }
  void shake() {
    bool alive = true;
    eventually([&] {
      zero_.progress();
      alive = alive && peer_.shake();
      return !alive || peer_.ready();
    });
    a_while([&] { zero_.progress(); });
  }
  /// Sends bytes as they are, past the proof and TLS.
  void put_raw(const void* data, std::size_t bytes) {
    ASSERT_EQ(::send(peer_.descriptor(), data, bytes, 0), static_cast<ssize_t>(bytes));
  }
  void put(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    for (std::size_t sent = 0; sent < bytes;) {
      const iovec rest{const_cast<std::byte*>(from + sent), bytes - sent};
      const ssize_t some = peer_.write(&rest, 1);
      ASSERT_TRUE(some > 0 || errno == EAGAIN) << errno;
      sent += static_cast<std::size_t>(std::max<ssize_t>(some, 0));
    }
    while (!peer_.flush()) ASSERT_EQ(errno, EAGAIN);
  }
  static FrameHeader frame(FrameKind kind, std::uint64_t ticket, std::uint64_t bytes, std::span<const std::byte> payload = {}) {
    FrameHeader header{};
    header.magic = tcp::kFrameMagic;
    header.kind = static_cast<std::uint8_t>(kind);
    header.stream = static_cast<std::uint8_t>(Stream::kv);
    header.sequence = 1;
    header.tag = 7;
    header.signature = 0xabcd;
    header.bytes = bytes;
    header.ticket = ticket;
    header.payload_hash = payload.empty() ? 0 : XXH3_64bits(payload.data(), payload.size());
    return header;
  }
  void put(FrameHeader header) {
    header.header_hash = XXH3_64bits(&header, offsetof(FrameHeader, header_hash));
    put(&header, sizeof header);
  }
  /// Is let in and announces message 1, for which `into` is posted.
  Ticket announce(std::span<std::byte> into) {
    dial();
    shake();
    EXPECT_TRUE(zero_.connected(1));
    const Ticket ticket = zero_.receive(kToOne, envelope_of(1), into);
    put(frame(FrameKind::announce, 1, into.size()));
    return ticket;
  }
  Outcome settle(Ticket ticket) {
    eventually([&] {
      zero_.progress();
      return zero_.test_receive(kToOne, ticket) != Outcome::pending;
    });
    return zero_.test_receive(kToOne, ticket);
  }

  TcpTransport zero_{options_of(0, 2, GetParam())};
  tls::Channel peer_;
};

/// Another one, which is let in; nothing if it isn't.
std::unique_ptr<ByHand> joined() {
  struct Fresh : ByHand {
    void TestBody() override {}
  };
  auto peer = std::make_unique<Fresh>();
  peer->dial();
  peer->shake();
  if (!peer->zero_.connected(1)) return nullptr;
  return peer;
}

TEST_P(ByHand, WhoKnowsTheSecretIsLetIn) {
  dial();
  shake();
  ASSERT_TRUE(zero_.connected(1));
  const std::vector<std::byte> payload = pattern(100, 1);
  put(frame(FrameKind::message, 1, 100, payload));
  put(payload.data(), payload.size());
  std::vector<std::byte> into(100);
  EXPECT_EQ(settle(zero_.receive(kToOne, envelope_of(1), into)), Outcome::done);
  EXPECT_EQ(into, payload);
}

TEST_P(ByHand, StrangersAreRefused) {
  dial("another job's");
  shake();
  EXPECT_FALSE(zero_.connected(1));
  dial();
  const std::vector<std::byte> garbage = pattern(4096, 3);
  put_raw(garbage.data(), garbage.size());
  a_while([&] { zero_.progress(); });
  EXPECT_FALSE(zero_.connected(1));
  std::vector<tls::Channel> half_open;
  for (int i = 0; i < 100; ++i) {
    dial();
    half_open.push_back(std::move(peer_));
    zero_.progress();
  }
  dial();
  shake();
  EXPECT_TRUE(zero_.connected(1));
}

/// A rank greets, and strangers that say nothing come behind it before anyone is let in.
TEST_P(ByHand, WhoHasGreetedIsNotDrivenOutByStrangers) {
  dial();
  ASSERT_TRUE(peer_.shake());  // as far as a greeting
  tls::Channel greeted = std::move(peer_);
  std::vector<tls::Channel> strangers;
  for (int i = 0; i < 100; ++i) {
    dial();
    strangers.push_back(std::move(peer_));
  }
  for (int i = 0; i < 100; ++i) zero_.progress();
  peer_ = std::move(greeted);
  shake();
  EXPECT_TRUE(zero_.connected(1));
}

/// The proof of a rank of a busy machine comes only after a silent stranger behind it was dropped for its silence.
TEST_P(ByHand, WhoHasGreetedHasTimeForItsProof) {
  dial();
  ASSERT_TRUE(peer_.shake());  // as far as a greeting
  tls::Channel greeted = std::move(peer_);
  dial();
  EXPECT_TRUE(test::until(30, [&] {
    zero_.progress();
    pollfd end{peer_.descriptor(), POLLIN, 0};
    return ::poll(&end, 1, 0) > 0;
  }));
  peer_ = std::move(greeted);
  shake();
  EXPECT_TRUE(zero_.connected(1));
}

/// A rank that is turned away as if it were a stranger dials again, as long as somebody listens.
TEST(TcpDialer, TriesAgainWhenItIsTurnedAway) {
  std::vector<posix::UniqueFd> listeners = tcp::listen_on({tcp::resolve("127.0.0.1", 0)});
  const tcp::AddressBlob blob = tcp::pack(tcp::local_address(listeners[0].get()), 0);
  TcpTransport one(options_of(1));
  one.connect(0, std::as_bytes(std::span(&blob, 1)));
  for (int i = 0; i < 5; ++i) {
    posix::UniqueFd accepted;
    EXPECT_TRUE(eventually([&] {
      one.progress();
      accepted = posix::UniqueFd(::accept(listeners[0].get(), nullptr, nullptr));
      return static_cast<bool>(accepted);
    })) << i;
    EXPECT_EQ(one.broken(0), "") << i;
  }
  listeners.clear();
  EXPECT_TRUE(eventually([&] {
    one.progress();
    return !one.broken(0).empty();
  }));
  EXPECT_NE(one.broken(0).find("connecting to rank 0: Connection refused"), std::string::npos) << one.broken(0);
}

TEST_P(ByHand, WhatAFloodLeftUnsaidIsSaidWhenItIsOver) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 20; ++i) {
    dial();
    put_raw("x", 1);
    peer_.reset();
  }
  zero_.progress();  // the second begins
  // A second's refusals are summed up when it is over.
  const std::uint64_t ends = posix::now_ns() + 1'300'000'000;
  while (posix::now_ns() < ends) {
    zero_.progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  zero_.progress();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("rank 0: tcp refused a connection from 127.0.0.1:"), std::string::npos) << said;
  EXPECT_NE(said.find("more connections within a second"), std::string::npos) << said;
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << "stdout is the program's";
}

TEST_P(ByHand, AMessageThatComesTwiceIsDamage) {
  const std::vector<std::byte> small = pattern(100, 1);
  for (const std::size_t bytes : {small.size(), std::size_t{1} << 20}) {
    SCOPED_TRACE(bytes);
    const auto fresh = joined();
    ASSERT_TRUE(fresh);
    ByHand& peer = *fresh;
    std::vector<std::byte> into(bytes);
    const Ticket first = peer.zero_.receive(kToOne, envelope_of(1), into);
    const Ticket second = peer.zero_.receive(kToOne, envelope_of(1), into);  // the same envelope: only its number tells
    const bool is_small = bytes == small.size();
    for (int i = 0; i < 2; ++i) {
      if (is_small) peer.put(ByHand::frame(FrameKind::message, 1, bytes, small));
      else peer.put(ByHand::frame(FrameKind::announce, 1, bytes));
      if (is_small) peer.put(small.data(), small.size());
    }
    EXPECT_EQ(peer.settle(second), Outcome::corrupt);
    EXPECT_EQ(peer.settle(first), is_small ? Outcome::done : Outcome::corrupt);
    EXPECT_EQ(peer.zero_.found(kToOne).detail, "message 1 came on stream kv, 2 was due");
  }
}

TEST_P(ByHand, APieceThatComesTwiceIsDamage) {
  const std::vector<std::byte> payload = pattern(2 * tcp::kPieceBytes, 1);
  std::vector<std::byte> into(payload.size());
  const Ticket ticket = announce(into);
  FrameHeader piece = frame(FrameKind::piece, 1, payload.size());
  piece.payload_hash = XXH3_64bits(payload.data(), tcp::kPieceBytes);
  std::thread sender([&] {
    put(piece);
    put(payload.data(), tcp::kPieceBytes);
    put(piece);
  });
  EXPECT_EQ(settle(ticket), Outcome::corrupt);
  sender.join();
  EXPECT_EQ(zero_.found(kToOne).detail, fmt::format("a piece at 0 of message 1, {} was due", tcp::kPieceBytes));
}

TEST_P(ByHand, ADamagedPieceIsFound) {
  std::vector<std::byte> payload = pattern(2 * tcp::kEagerBytes, 1);
  std::vector<std::byte> into(payload.size());
  const Ticket ticket = announce(into);
  put(frame(FrameKind::piece, 1, payload.size(), payload));
  payload.back() ^= std::byte{4};
  put(payload.data(), payload.size());
  EXPECT_EQ(settle(ticket), Outcome::corrupt);
  EXPECT_EQ(zero_.found(kToOne).detail,
            fmt::format("{} bytes at 0 of message 1 on stream kv are damaged: their hash is wrong", payload.size()));
}

TEST_P(ByHand, DamageThatCameBeforeItsReceiveIsFoundByTheReceive) {
  dial();
  shake();
  ASSERT_TRUE(zero_.connected(1));
  const std::vector<std::byte> payload = pattern(100, 1);
  std::vector<std::byte> damaged = payload;
  damaged[50] ^= std::byte{4};
  std::vector<std::byte> both;  // in one write, so that the kernel doesn't hold parts back
  for (const std::uint64_t ticket : {1U, 2U}) {
    FrameHeader header = frame(FrameKind::message, ticket, 100, payload);
    header.header_hash = XXH3_64bits(&header, offsetof(FrameHeader, header_hash));
    std::ranges::copy(std::as_bytes(std::span(&header, 1)), std::back_inserter(both));
    std::ranges::copy(ticket == 1 ? damaged : payload, std::back_inserter(both));
  }
  put(both.data(), both.size());
  a_while([&] { zero_.progress(); });
  std::vector<std::byte> into(100);
  const std::vector<std::byte> untouched = into;
  const Ticket first = zero_.receive(kToOne, envelope_of(1), into);
  const Ticket second = zero_.receive(kToOne, envelope_of(1), into);
  EXPECT_EQ(zero_.test_receive(kToOne, first), Outcome::corrupt);
  EXPECT_EQ(zero_.test_receive(kToOne, second), Outcome::corrupt);
  EXPECT_EQ(zero_.found(kToOne).detail, "a message of 100 bytes on stream kv is damaged: its hash is wrong");
  EXPECT_EQ(into, untouched);
}

TEST_P(ByHand, NonsenseBreaksTheLaneLoudly) {
  const std::vector<std::byte> payload = pattern(100, 1);
  struct Case {
    const char* what;
    std::function<void(ByHand&)> send;
  };
  const Case cases[] = {
      {"damaged payload",
       [&](ByHand& peer) {
         std::vector<std::byte> other = payload;
         other[50] ^= std::byte{4};
         peer.put(ByHand::frame(FrameKind::message, 1, 100, payload));
         peer.put(other.data(), other.size());
       }},
      {"damaged header",
       [&](ByHand& peer) {
         FrameHeader header = ByHand::frame(FrameKind::message, 1, 100, payload);
         header.header_hash = 1;
         peer.put(&header, sizeof header);
       }},
      {"oversized", [&](ByHand& peer) { peer.put(ByHand::frame(FrameKind::message, 1, std::uint64_t{1} << 60)); }},
      {"unknown kind", [&](ByHand& peer) { peer.put(ByHand::frame(static_cast<FrameKind>(99), 1, 0)); }},
      {"unknown stream",
       [&](ByHand& peer) {
         FrameHeader header = ByHand::frame(FrameKind::message, 1, 0);
         header.stream = 200;
         peer.put(header);
       }},
      {"wrong ticket", [&](ByHand& peer) { peer.put(ByHand::frame(FrameKind::message, 2, 0)); }},
      {"a grant of nothing", [&](ByHand& peer) { peer.put(ByHand::frame(FrameKind::grant, 1'000'000, 0)); }},
      {"a credit of nothing", [&](ByHand& peer) { peer.put(ByHand::frame(FrameKind::credit, 1, 0)); }},
      {"a piece of nothing", [&](ByHand& peer) { peer.put(ByHand::frame(FrameKind::piece, 1, 1 << 20)); }},
      {"a piece out of order",
       [&](ByHand& peer) {
         peer.put(ByHand::frame(FrameKind::announce, 1, 1 << 20));
         FrameHeader header = ByHand::frame(FrameKind::piece, 1, 1 << 20);
         header.where = 4096;
         peer.put(header);
       }},
      {"a piece past the end",
       [&](ByHand& peer) {
         peer.put(ByHand::frame(FrameKind::announce, 1, 1 << 20));
         FrameHeader header = ByHand::frame(FrameKind::piece, 1, 1 << 20);
         header.where = ~std::uint64_t{0} - 10;
         peer.put(header);
       }},
      {"garbage",
       [&](ByHand& peer) {
         const std::vector<std::byte> garbage = pattern(1000, 9);
         peer.put(garbage.data(), garbage.size());
       }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    const auto fresh = joined();
    ASSERT_TRUE(fresh);
    ByHand& peer = *fresh;
    std::vector<std::byte> into(std::string_view(each.what).starts_with("a piece") ? 1 << 20 : 100);
    const Ticket ticket = peer.zero_.receive(kToOne, envelope_of(1), into);
    each.send(peer);
    EXPECT_EQ(peer.settle(ticket), Outcome::corrupt);
    EXPECT_FALSE(peer.zero_.found(kToOne).detail.empty());
  }
}

#if !defined(TSP_SANITIZE_ADDRESS)  // as few_descriptors.h

/// Turned away while no descriptor is left, a rank can't dial again: that peer is lost, and progress() goes on.
TEST(TcpShortOfDescriptors, LosesThePeerThatItCannotDialAgain) {
  const std::vector<posix::UniqueFd> listeners = tcp::listen_on({tcp::resolve("127.0.0.1", 0)});
  const tcp::AddressBlob blob = tcp::pack(tcp::local_address(listeners[0].get()), 0);
  TcpTransport one(options_of(1));
  one.connect(0, std::as_bytes(std::span(&blob, 1)));
  posix::UniqueFd accepted(::accept(listeners[0].get(), nullptr, nullptr));
  ASSERT_TRUE(accepted);
  const test::FewDescriptors none(0);
  ::shutdown(accepted.get(), SHUT_RDWR);  // without a greeting, as to one stranger too many
  EXPECT_NO_THROW(eventually([&] {
    one.progress();
    return !one.broken(0).empty();
  }));
  EXPECT_NE(one.broken(0).find("Too many open files"), std::string::npos) << one.broken(0);
}

#endif

INSTANTIATE_TEST_SUITE_P(Tcp, ByHand, testing::Bool(), name_of);

}  // namespace
}  // namespace tsprun::detail::tcp_lane_test
