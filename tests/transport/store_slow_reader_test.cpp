// Clients of the job's store that read slowly, or nothing: what waits for them in the store's process stays small, and those that
// read get everything.
#include "transport/bootstrap/store.h"
#include "transport/cause.h"
#include "transport/tcp/dial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace tsprun::detail::bootstrap::store_slow_reader_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
/// Values of which all together are more than sockets hold.
constexpr int kMany = 400;
/// Bytes that may wait in the server for a client that gathers: kMostAhead of the server, a frame more, and what was sent of it.
constexpr std::size_t kMostHeld = 4 * kMostGatheredBytes;

std::vector<std::byte> value_of(int number) {
  return std::vector<std::byte>(kMostValueBytes - static_cast<std::size_t>(number), std::byte(number));
}

std::string key_of(int number) { return "kind/" + std::to_string(number); }

/// A server, and a client of which a test decides when it reads.
class SlowReader : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    server_.on_gone = [this](int, const std::string& why, bool) { gone_ = why; };
    pump_until([&] { return link_.pump() && link_.ready(); });
    ASSERT_TRUE(link_.ready());
  }
  /// Lets the server go on until something is true, for five minutes at most.
  template <typename Met>
  void pump_until(const Met& met) {
    const std::uint64_t ends = posix::now_ns() + 300 * kSecond;
    while (!met() && posix::now_ns() < ends) {
      server_.pump();
      most_held_ = std::max(most_held_, server_.unread());
    }
  }
  /// Sends without reading, and lets the server go on until it has nothing to do.
  void send(StoreOp op, const std::string& key, const std::vector<std::byte>& value) {
    const std::uint64_t before = server_.requests();
    link_.send(op, key, value);
    pump_until([&] { return link_.flush() && server_.requests() > before; });
    for (int i = 0; i < 100; ++i) server_.pump();
    most_held_ = std::max(most_held_, server_.unread());
  }
  /// Takes what has come, and returns how many values are there.
  std::size_t take() {
    static_cast<void>(link_.pump());
    StoreFrame frame;
    while (link_.next(frame)) {
      EXPECT_EQ(frame.op, StoreOp::gathered);
      EXPECT_TRUE(each_entry(frame.value, 1, [&](int number, std::span<const std::byte> value) {
        EXPECT_TRUE(std::ranges::equal(value, value_of(number))) << number;
        EXPECT_TRUE(got_.insert(number).second) << number;
      }));
    }
    return got_.size();
  }
  static std::vector<std::byte> request() {
    std::vector<int> numbers(kMany);
    std::iota(numbers.begin(), numbers.end(), 0);
    return gather_request({}, 1, numbers);
  }

  tls::Credentials credentials_{secret_from_text("of this test"), GetParam()};
  StoreServer server_{"127.0.0.1", 0, credentials_};
  StoreLink link_{tls::Channel::connector(tcp::dial(addresses_of("test", server_.address()), kSecond, {}), credentials_,
                                          ConnectionUse::store, 1, 0)};
  std::string gone_;
  std::size_t most_held_ = 0;
  std::set<int> got_;
};

TEST_P(SlowReader, GetsAGatherAsItReads) {
  for (int number = 0; number < kMany; ++number) server_.set(key_of(number), value_of(number));
  send(StoreOp::gather, "kind/", request());
  std::size_t before = 0;
  for (std::size_t now = take(); now != before; now = take()) before = now;
  EXPECT_LT(before, kMany);  // so more was asked for than sockets hold
  pump_until([&] { return take() == kMany; });
  EXPECT_EQ(got_.size(), kMany);
  EXPECT_LE(most_held_, kMostHeld);
  EXPECT_EQ(server_.unread(), 0);
  EXPECT_EQ(gone_, "");
}

TEST_P(SlowReader, GetsAGatherThatTheLastKeyCompletes) {
  send(StoreOp::gather, "kind/", request());
  for (int number = kMany - 1; number >= 0; --number) server_.set(key_of(number), value_of(number));
  EXPECT_GT(server_.unread(), 0);
  pump_until([&] { return take() == kMany; });
  EXPECT_EQ(got_.size(), kMany);
  EXPECT_LE(most_held_, kMostHeld);
  EXPECT_EQ(gone_, "");
}

TEST_P(SlowReader, LeavesNothingInTheBufferOfWhatItHasRead) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  StoreLink from(tls::Channel::acceptor(posix::UniqueFd(ends[0]), credentials_, ConnectionUse::store, 0));
  StoreLink to(tls::Channel::connector(posix::UniqueFd(ends[1]), credentials_, ConnectionUse::store, 1, 0));
  for (int i = 0; i < 100 && !(from.ready() && to.ready()); ++i) ASSERT_TRUE(from.pump() && to.pump());
  const std::vector<std::byte> value(kMostValueBytes);
  std::vector<std::byte> read(kMostValueBytes);
  std::size_t most = 0;
  while (from.backlog() < 4 * kMostValueBytes) {
    from.send(StoreOp::value, "k", value);
    ASSERT_TRUE(from.flush());
  }
  for (int i = 0; i < kMany; ++i) {  // something always waits
    from.send(StoreOp::value, "k", value);
    for (std::size_t got = 0; got < value.size();) {
      const ssize_t some = ::recv(to.descriptor(), read.data(), value.size() - got, 0);
      ASSERT_GT(some, 0);
      got += static_cast<std::size_t>(some);
      ASSERT_TRUE(from.flush());
    }
    ASSERT_GT(from.backlog(), 0);
    most = std::max(most, from.held());
  }
  EXPECT_LE(most, 16 * kMostValueBytes);
}

TEST_P(SlowReader, IsDroppedWhenTooMuchOfItsSubscriptionWaits) {
  send(StoreOp::subscribe, "kind/", {});
  for (int time = 0; time < 5 * kMany; ++time) server_.set(key_of(0), value_of(0));
  EXPECT_LE(server_.unread(), 2 * (64U << 20));
  pump_until([&] { return !gone_.empty(); });
  EXPECT_EQ(gone_, "it left 64 MiB unread");
}

TEST_P(SlowReader, IsDroppedWhenItAsksForTooMuchAtOnce) {
  server_.set(key_of(0), value_of(0));
  for (int time = 0; time < 5 * kMany; ++time) link_.send(StoreOp::get, key_of(0), {});
  pump_until([&] { return !link_.flush() || !gone_.empty(); });
  EXPECT_EQ(gone_, "it left 64 MiB unread");
}

std::string name_of(const testing::TestParamInfo<bool>& info) { return info.param ? "WithTls" : "Plain"; }
INSTANTIATE_TEST_SUITE_P(Sockets, SlowReader, testing::Bool(), name_of);

}  // namespace
}  // namespace tsprun::detail::bootstrap::store_slow_reader_test
