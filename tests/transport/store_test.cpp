// The job's store: values, waiting for values, subscriptions; and those who aren't let in. With TLS and without.

#include "transport/bootstrap/store.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/free_port.h"
#include "tests/support/on_path.h"
#include "tests/transport/owned_bytes.h"
#include "transport/cause.h"
#include "transport/tcp/dial.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/uio.h>
#include <thread>
#include <vector>

namespace tsprun::detail::bootstrap::store_test {
namespace {

using test::owned_bytes;

constexpr std::uint64_t kSecond = 1'000'000'000;

std::string name_of(const testing::TestParamInfo<bool>& info) { return info.param ? "WithTls" : "Plain"; }

/// A server that a thread pumps.
class Store : public testing::TestWithParam<bool> {
 public:
  ~Store() override {
    over_ = true;
    pump_.join();
  }

 protected:
  StoreClient client(int name, std::uint64_t timeout_ns = 5 * kSecond) {
    return {server_.address(), credentials_, name, timeout_ns};
  }
  posix::UniqueFd dial() const {
    const HostPort place = parse_host_port("test", server_.address());
    const tcp::SocketAddress where = tcp::resolve(place.host, place.port);
    posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(::connect(socket.get(), where.get(), where.length), 0);
    return socket;
  }
  /// Returns a client that knows the secret, and has said nothing yet.
  tls::Channel member(posix::UniqueFd socket) const {
    return tls::Channel::connector(std::move(socket), credentials_, ConnectionUse::store, 5, 0);
  }
  /// The client's part of the proof; false if the other end closes, or says nothing for a minute.
  static bool shake(tls::Channel& channel) {
    const std::uint64_t ends = posix::now_ns() + 60 * kSecond;
    while (!channel.ready()) {
      if (!channel.shake() || posix::now_ns() > ends) return false;
      pollfd something{channel.descriptor(), POLLIN, 0};
      if (!channel.ready()) ::poll(&something, 1, 100);
    }
    return true;
  }
  /// Returns true if the other end closes within so many seconds. After 5 s it drops strangers for their silence alone.
  static bool is_dropped(int socket, int seconds = 4) {
    const timeval patience{seconds, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::byte bytes[512];
    ssize_t got = 1;
    while (got > 0) got = ::recv(socket, bytes, sizeof bytes, 0);
    return got == 0 || errno == ECONNRESET;
  }

  tls::Credentials credentials_{secret_from_text("of this test"), GetParam()};
  StoreServer server_{"127.0.0.1", 0, credentials_};
  std::atomic<bool> over_ = false;
  std::atomic<int> gone_damaged_ = 0;  // clients that went because of damage
  std::thread pump_{[this] {
    server_.on_gone = [this](int, const std::string&, bool damaged) { gone_damaged_ += damaged ? 1 : 0; };
    while (!over_) {
      server_.pump();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }};
};

TEST_P(Store, KeepsValuesAndWaitsForThem) {
  StoreClient one = client(0);
  StoreClient two = client(1);
  EXPECT_EQ(one.local_host(), "127.0.0.1");
  one.set("early", owned_bytes("worm"));
  EXPECT_EQ(two.get("early", "it"), owned_bytes("worm"));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    one.set("late", std::vector<std::byte>(kMostValueBytes, std::byte{7}));
  });
  EXPECT_EQ(two.get("late", "it"), std::vector<std::byte>(kMostValueBytes, std::byte{7}));
  later.join();
}

TEST_P(Store, TellsWhatWasWaitedForAtTheDeadline) {
  StoreClient one = client(0, 3 * kSecond);  // within which it also has to connect
  try {
    one.get("never", "rank 7 to say where it listens");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::stalled);
    EXPECT_NE(std::string(error.what()).find("rank 7"), std::string::npos) << error.what();
  }
}

TEST_P(Store, GathersManyValuesByOneRequest) {
  StoreClient one = client(0);
  StoreClient two = client(1, 60 * kSecond);
  const auto long_value = [](int number) {
    return std::vector<std::byte>(kMostValueBytes - static_cast<std::size_t>(number), std::byte(number));
  };
  for (const int number : {0, 3, 9, 1000}) one.set(fmt::format("kind/{}", number), long_value(number));
  one.set("kind/linked/2", owned_bytes("another prefix"));
  one.set("kind/2x", owned_bytes("no number"));
  one.set("kin/2", owned_bytes("a shorter prefix"));
  one.get("kin/2", "it");
  std::vector<int> lacked;
  const auto lacking = [&](int number) {
    lacked.push_back(number);
    return std::to_string(number);
  };
  const std::uint64_t before = server_.requests();
  EXPECT_EQ(two.gather("kind/", {1000, 0, 9}, lacking),
            (std::vector<std::vector<std::byte>>{long_value(1000), long_value(0), long_value(9)}));
  EXPECT_LE(server_.requests(), before + 2);  // where an answer takes more than a second, it asks again
  EXPECT_EQ(lacked.front(), 0);               // the lowest, until something has come
  EXPECT_EQ(two.gather("kind/", {}, lacking), std::vector<std::vector<std::byte>>());
  one.set("cut/1", owned_bytes("aabbccrest"));
  one.set("cut/0", owned_bytes("xxyyzz"));
  EXPECT_EQ(two.gather("cut/", {0, 1}, lacking, {2, 2, 6}), (std::vector{owned_bytes("yy"), owned_bytes("bbrest")}));
}

TEST_P(Store, GathersWhatComesLaterAndTellsWhatIsMissing) {
  StoreClient one = client(0);
  StoreClient two = client(1, 20 * kSecond);
  for (const int number : {0, 1}) one.set(fmt::format("kind/{}", number), owned_bytes("early"));
  one.get("kind/1", "it");
  std::atomic<int> lacked = -1;
  const auto until_it_lacks = [&](int number) {
    const std::uint64_t ends = posix::now_ns() + 10 * kSecond;
    while (lacked != number && posix::now_ns() < ends) std::this_thread::yield();
    EXPECT_EQ(lacked, number);
  };
  std::jthread later([&] {
    until_it_lacks(2);  // it has asked, and has what was there
    one.set("kind/2", owned_bytes("c"));
    until_it_lacks(3);  // it hears of 2 although 3 is missing
    one.set("kind/4", {});
    one.set("kind/3", owned_bytes("d"));
  });
  EXPECT_EQ(
      two.gather("kind/", {0, 1, 2, 3, 4},
                 [&](int number) {
                   lacked = number;
                   return std::string();
                 }),
      (std::vector<std::vector<std::byte>>{owned_bytes("early"), owned_bytes("early"), owned_bytes("c"), owned_bytes("d"), {}}));
  later.join();
  // Changed values are what later gathers get.
  one.set("kind/2", owned_bytes("e"));
  one.get("kind/2", "it");
  EXPECT_EQ(two.gather("kind/", {2}, [](int) { return std::string(); }), (std::vector<std::vector<std::byte>>{owned_bytes("e")}));
}

TEST_P(Store, NamesTheFirstThatAGatherLacksAtTheDeadline) {
  StoreClient one = client(0);
  StoreClient two = client(1, 3 * kSecond);  // within which it also has to connect
  for (const int number : {0, 1, 2, 4}) one.set(fmt::format("kind/{}", number), owned_bytes("here"));
  try {
    two.gather("kind/", {0, 1, 2, 3, 4}, [](int number) { return fmt::format("rank {} to come", number); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::stalled);
    EXPECT_STREQ(error.what(), "waited 3.0 s for rank 3 to come");
  }
}

TEST_P(Store, ManyGatherFromEachOther) {
  constexpr int kMany = 12;
  std::vector<int> all(kMany);
  std::iota(all.begin(), all.end(), 0);
  std::atomic<int> whole = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kMany; ++rank) {
    threads.emplace_back([&, rank] {
      StoreClient mine = client(rank, 60 * kSecond);
      bool right = true;
      for (const char* prefix : {"first/", "second/"}) {
        mine.set(fmt::format("{}{}", prefix, rank), owned_bytes(fmt::format("{}{}", prefix, rank * rank)));
        const auto values = mine.gather(prefix, all, [](int number) { return std::to_string(number); });
        for (int other = 0; other < kMany; ++other) {
          right = right && values[static_cast<std::size_t>(other)] == owned_bytes(fmt::format("{}{}", prefix, other * other));
        }
      }
      whole += right ? 1 : 0;
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(whole, kMany);
}

TEST_P(Store, RefusesToGatherByAPrefixThatEndsInADigit) {
  for (const char* prefix : {"kind/1", ""}) {
    StoreClient one = client(0);
    try {
      one.gather(prefix, {0}, [](int) { return std::string(); });
      ADD_FAILURE() << prefix;
    } catch (const Error& error) {
      EXPECT_EQ(error.cause(), Cause::disconnected) << error.what();
    }
  }
}

TEST(FullStore, EndsTheLinkOfWhoeverSetsAnotherKey) {
  const tls::Credentials credentials{secret_from_text("of this test"), false};
  StoreServer server("127.0.0.1", 0, credentials);
  for (int key = 0; key < 1 << 20; ++key) server.set(std::to_string(key), {});
  std::string why;
  server.on_gone = [&](int, const std::string& reason, bool) { why = reason; };
  StoreClient one(server.address(), credentials, 0, 5 * kSecond, [&] { server.pump(); });
  const std::uint64_t ends = posix::now_ns() + 60 * kSecond;
  const auto pump_until = [&](const auto& met) {
    while (!met() && posix::now_ns() < ends) {
      static_cast<void>(one.pump());
      server.pump();
    }
  };
  one.set("7", owned_bytes("changed"));  // known keys still change
  pump_until([&] { return *server.find("7") == owned_bytes("changed"); });
  EXPECT_EQ(*server.find("7"), owned_bytes("changed"));
  EXPECT_EQ(why, "");
  one.set("another", owned_bytes("lost"));
  pump_until([&] { return !why.empty() && !one.pump(); });
  EXPECT_EQ(why, "the store is full: it holds 1048576 keys and takes no other");
  EXPECT_FALSE(one.pump());
  EXPECT_EQ(server.find("another"), nullptr);
}

TEST_P(Store, SubscribersHearEverythingUnderTheirPrefix) {
  StoreClient one = client(0);
  StoreClient two = client(1);
  one.set("live/a", owned_bytes("1"));
  one.set("dead/a", owned_bytes("2"));
  one.get("dead/a", "it");
  two.subscribe("live/");
  one.set("live/b", owned_bytes("3"));
  std::string heard;
  const std::uint64_t ends = posix::now_ns() + 60 * kSecond;
  while (heard.size() < 12 && posix::now_ns() < ends) {
    ASSERT_TRUE(two.pump());
    for (StoreFrame frame; two.next(frame);) heard += frame.key;
  }
  EXPECT_EQ(heard, "live/alive/b");
}

TEST_P(Store, WhatComesBySubscriptionWaitsWhileAKeyIsAskedFor) {
  StoreClient one = client(0);
  StoreClient two = client(1);
  two.subscribe("live/");
  one.set("live/a", owned_bytes("1"));
  one.set("after", owned_bytes("it"));
  EXPECT_EQ(two.get("after", "it"), owned_bytes("it"));  // live/a came before it
  StoreFrame frame;
  ASSERT_TRUE(two.next(frame));
  EXPECT_EQ(frame.key, "live/a");
  EXPECT_EQ(frame.value, owned_bytes("1"));
  EXPECT_FALSE(two.next(frame));
}

TEST_P(Store, StrangersAreDroppedAndOthersGoOn) {
  StoreClient one = client(0);
  const posix::UniqueFd garbage = dial();
  const std::string text(5000, 'x');
  ::send(garbage.get(), text.data(), text.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(is_dropped(garbage.get()));
  EXPECT_THROW(StoreClient(server_.address(), tls::Credentials(secret_from_text("another"), GetParam()), 1, kSecond), Error);
  std::vector<posix::UniqueFd> half_open;
  for (int i = 0; i < 80; ++i) half_open.push_back(dial());
  EXPECT_TRUE(is_dropped(half_open.front().get()));  // too many try at once: the oldest goes
  one.set("still", owned_bytes("here"));
  EXPECT_EQ(client(1).get("still", "it"), owned_bytes("here"));
}

TEST_P(Store, WhoHasGreetedIsNotDrivenOutByStrangers) {
  tls::Channel one = member(dial());
  ASSERT_TRUE(one.shake());  // as far as a greeting
  std::vector<posix::UniqueFd> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(dial());
  EXPECT_TRUE(is_dropped(strangers.front().get()));  // too many try at once
  EXPECT_TRUE(shake(one));
}

/// The proof of a client of a busy machine comes only after a silent stranger behind it was dropped for its silence.
TEST_P(Store, WhoHasGreetedHasTimeForItsProof) {
  tls::Channel one = member(dial());
  ASSERT_TRUE(one.shake());  // as far as a greeting
  const posix::UniqueFd silent = dial();
  EXPECT_TRUE(is_dropped(silent.get(), 30));
  EXPECT_TRUE(shake(one));
}

#if !defined(TSP_SANITIZE_ADDRESS)  // as few_descriptors.h

using test::FewDescriptors;

class StoreShortOfDescriptors : public Store {
 protected:
  void lets_a_member_in(std::size_t left);
};

void StoreShortOfDescriptors::lets_a_member_in(std::size_t left) {
  const HostPort place = parse_host_port("test", server_.address());
  const tcp::SocketAddress where = tcp::resolve(place.host, place.port);
  std::vector<posix::UniqueFd> strangers;
  for (int i = 0; i < 12; ++i) strangers.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
  posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  const auto so_many_are_dropped = [&](std::size_t count) {
    const auto dropped = [&] {
      return static_cast<std::size_t>(std::ranges::count_if(strangers, [](const posix::UniqueFd& each) {
        pollfd end{each.get(), POLLIN, 0};
        return ::poll(&end, 1, 0) > 0;
      }));
    };
    const std::uint64_t ends = posix::now_ns() + 4 * kSecond;  // they would be dropped for their slowness after 5 s
    while (dropped() < count && posix::now_ns() < ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return dropped() == count;
  };
  const FewDescriptors few(left);
  for (const posix::UniqueFd& each : strangers) EXPECT_EQ(::connect(each.get(), where.get(), where.length), 0);
  EXPECT_TRUE(so_many_are_dropped(strangers.size() - left));
  // It takes a stranger's place, and nobody takes its: nobody else is at the door.
  ASSERT_EQ(::connect(socket.get(), where.get(), where.length), 0);
  EXPECT_TRUE(so_many_are_dropped(strangers.size() - left + 1));
  tls::Channel one = member(std::move(socket));
  EXPECT_TRUE(shake(one));
}

TEST_P(StoreShortOfDescriptors, LetsAMemberInByTheLastOne) { lets_a_member_in(1); }
TEST_P(StoreShortOfDescriptors, LetsAMemberInBySix) { lets_a_member_in(6); }

INSTANTIATE_TEST_SUITE_P(Sockets, StoreShortOfDescriptors, testing::Bool(), name_of);

#endif

/// The server closes the connection at once, as it does with one stranger too many.
TEST(StoreClientAtTheDoor, TriesAgainWhenItIsTurnedAway) {
  const Secret secret = secret_from_text("of this test");
  std::vector<posix::UniqueFd> listeners =
      tcp::listen_on({tcp::resolve("127.0.0.1", static_cast<std::uint16_t>(test::free_port()))});
  const tcp::SocketAddress where = tcp::local_address(listeners[0].get());
  std::atomic<bool> in = false;
  std::thread client([&] {
    try {
      StoreClient(where.print(), secret, 0, 30 * kSecond).set("here", owned_bytes("I am"));
      in = true;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
      in = true;
    }
  });
  for (posix::UniqueFd accepted; !accepted;) accepted = posix::UniqueFd(::accept(listeners[0].get(), nullptr, nullptr));
  listeners.clear();
  StoreServer server("127.0.0.1", where.port(), secret);
  while (!in) {
    server.pump();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  client.join();
}

/// A client that knows the secret, but sends frames that can't be.
TEST_P(Store, ImpossibleFramesEndTheirLinkAlone) {
  StoreClient good = client(0);
  StoreHeader garbage = header_of(StoreOp::set, "", {});
  garbage.magic = 0x12345678;
  StoreHeader flipped = header_of(StoreOp::set, "", {});
  flipped.value_bytes ^= 1;
  const StoreHeader cases[] = {garbage, flipped, header_of(static_cast<StoreOp>(99), "", {}),
                               header_of(StoreOp::set, std::string(60000, 'k'), {}),
                               header_of(StoreOp::set, "k", std::vector<std::byte>(kMostValueBytes + 1))};
  testing::internal::CaptureStderr();
  for (const StoreHeader& header : cases) {
    tls::Channel liar = member(dial());
    ASSERT_TRUE(shake(liar));
    const iovec frame{const_cast<StoreHeader*>(&header), sizeof header};
    ASSERT_EQ(liar.write(&frame, 1), static_cast<ssize_t>(sizeof header));
    EXPECT_TRUE(is_dropped(liar.descriptor(), 20));
  }
  good.set("still", owned_bytes("here"));
  EXPECT_EQ(client(1).get("still", "it"), owned_bytes("here"));
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* reason : {"it sent something that is no frame", "it sent a key of 60000", "a value of 65537 bytes",
                             "a frame's header has another hash"})
    EXPECT_NE(said.find(reason), std::string::npos) << reason << " isn't in\n" << said;
}

/// Of what goes over the link one byte is changed, whichever it is: in the frame's header, its key or its value.
TEST(StoreFrames, HaveTheNumbersOfTheFirstVersion) {
  EXPECT_EQ(header_of(StoreOp::set, "", {}).op, 1);
  EXPECT_EQ(header_of(StoreOp::value, "", {}).op, 4);
  EXPECT_EQ(header_of(StoreOp::damaged, "", {}).op, 5);
}

TEST_P(Store, DamageOnTheWayEndsTheLinkAndIsKnownToBothEnds) {
  for (const std::size_t place : {0U, 9U, 20U, 33U, 70U}) {
    std::atomic<bool> armed = false;
    const int damaged_before = gone_damaged_;
    const HostPort to = parse_host_port("test", server_.address());
    test::OnPath attacker(tcp::resolve(to.host, to.port), [&](test::OnPath::Bytes bytes) {
      if (armed.exchange(false)) bytes.at(place) ^= std::byte{4};
      return std::optional(std::move(bytes));
    });
    StoreClient one(attacker.where().print(), credentials_, 3, 5 * kSecond);
    one.set("first", owned_bytes("whole"));
    EXPECT_EQ(client(1).get("first", "it"), owned_bytes("whole"));
    armed = true;
    one.set("second", owned_bytes(std::string(100, 'v')));
    const std::uint64_t ends = posix::now_ns() + 10 * kSecond;
    while (one.pump() && posix::now_ns() < ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(one.link().damaged()) << place << ": " << one.link().why_over();
    while (gone_damaged_ == damaged_before && posix::now_ns() < ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(gone_damaged_, damaged_before + 1) << place;
  }
}

TEST_P(Store, ATakenPortIsNamed) {
  const HostPort place = parse_host_port("test", server_.address());
  try {
    StoreServer second(place.host, place.port, credentials_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("taken"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Sockets, Store, testing::Bool(), name_of);

TEST(HostPort, IsParsedStrictly) {
  EXPECT_EQ(parse_host_port("x", "node-1:29500").host, "node-1");
  EXPECT_EQ(parse_host_port("x", "[::1]:29500").host, "::1");
  EXPECT_EQ(parse_host_port("x", "10.0.0.1:1").port, 1);
  for (const char* text : {"", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:1x", "host:1 "}) {
    EXPECT_THROW(parse_host_port("x", text), Error) << text;
  }
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::store_test
