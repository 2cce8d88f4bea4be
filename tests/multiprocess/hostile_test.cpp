// Strangers at the door of a running job: a flood of connections with wrong secrets, random bytes and bytes that were recorded
// from a member of the job, and others that say a byte at a time. The job ends as if they weren't there, and its log says who
// they were.

#include "tests/support/free_port.h"
#include "tests/support/oracle.h"
#include "tests/support/process.h"
#include "transport/bootstrap/store.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"
#include "transport/tls/channel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace tsprun::detail::test::hostile_test {
namespace {

using bootstrap::ConnectionUse;
using bootstrap::Secret;
using Bytes = std::vector<std::byte>;

constexpr const char* kText = "of this test, and long enough";
const tls::Credentials kSecret{bootstrap::secret_from_text(kText), true};
constexpr int kFlood = 500;  // connections a second
constexpr int kSlow = 100;   // that say a byte now and then

/// Returns a connected socket; empty if nobody listens there, or no longer.
posix::UniqueFd dial(int port) {
  const tcp::SocketAddress where = tcp::resolve("127.0.0.1", static_cast<std::uint16_t>(port));
  posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{0, 200'000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(socket.get(), where.get(), where.length) != 0) socket.reset();
  return socket;
}

void say(const posix::UniqueFd& socket, std::span<const std::byte> bytes) {
  [[maybe_unused]] const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Does the connector's part of the proof of this secret. Returns all that it sent; empty if it wasn't let in. Its bytes pass
/// through a pair of sockets, where they are recorded.
Bytes shake(const posix::UniqueFd& socket, const tls::Credentials& credentials) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return {};
  const posix::UniqueFd tap(ends[1]);
  tls::Channel channel = tls::Channel::connector(posix::UniqueFd(ends[0]), credentials, ConnectionUse::store, 1, 0);
  Bytes said;
  std::byte bytes[4096];
  while (channel.shake() && !channel.ready()) {
    for (ssize_t got = 0; (got = ::recv(tap.get(), bytes, sizeof bytes, 0)) > 0;) {
      said.insert(said.end(), bytes, bytes + got);
      say(socket, {bytes, static_cast<std::size_t>(got)});
    }
    const ssize_t answer = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (answer <= 0) return {};
    say(tap, {bytes, static_cast<std::size_t>(answer)});
  }
  return channel.ready() ? said : Bytes();
}

Bytes random_bytes(std::uint64_t seed) {
  Bytes bytes(mix(seed) % 300);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mix(seed, i));
  return bytes;
}

/// Strangers that connect and misbehave as long as the object lives.
class Hostiles {
 public:
  Hostiles(int port, const Bytes& recorded)
      : flood_([this, port, recorded] { flood(port, recorded); }), slow_([this, port] { crawl(port); }) {}
  Hostiles(const Hostiles&) = delete;
  Hostiles& operator=(const Hostiles&) = delete;
  ~Hostiles() {
    over_ = true;
    flood_.join();
    slow_.join();
  }
  int connections() const { return connections_; }

 private:
  void flood(int port, const Bytes& recorded) {
    auto next = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; !over_; ++i) {
      next += std::chrono::microseconds(1'000'000 / kFlood);
      std::this_thread::sleep_until(next);
      const posix::UniqueFd socket = dial(port);
      if (!socket) continue;
      ++connections_;
      if (i % 3 == 0) say(socket, random_bytes(i));
      if (i % 3 == 1) say(socket, recorded);
      if (i % 30 == 2) shake(socket, {bootstrap::secret_from_text("another"), true});
    }
  }
  void crawl(int port) {
    std::vector<posix::UniqueFd> sockets(kSlow);
    while (!over_) {
      for (posix::UniqueFd& socket : sockets) {
        const std::byte one{0x16};  // so begins a record of TLS
        if (!socket || ::send(socket.get(), &one, 1, MSG_NOSIGNAL) < 0) socket = dial(port);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  std::atomic<bool> over_ = false;
  std::atomic<int> connections_ = 0;
  std::thread flood_;
  std::thread slow_;
};

TEST(Hostiles, HurtNobodyAndAreInTheLog) {
  const int port = free_port();
  const auto node = [&](int index) {
    return tsprun_actor({"-n", "2", "--timeout", "20", "--nnodes", "2", "--node-rank", std::to_string(index), "--rendezvous",
                         fmt::format("127.0.0.1:{}", port)},
                        {"sum", "40"});
  };
  const ProcessOptions options{.environment = {{"TSP_SECRET", kText}}, .input = {}};
  Process first(node(0), options);
  // What a member says when it comes in, for others to say again.
  Bytes recorded;
  for (int tries = 0; tries < 500 && recorded.empty(); ++tries) {
    const posix::UniqueFd member = dial(port);
    if (member) recorded = shake(member, kSecret);
    if (recorded.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_FALSE(recorded.empty());
  int connections = 0;
  {
    const Hostiles hostiles(port, recorded);
    // The log sums up a second's refusals when it is over, and a fast machine's job may not last so long.
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    Process second(node(1), options);
    EXPECT_EQ(second.wait().code, 0) << second.err();
    EXPECT_EQ(first.wait().code, 0) << first.err();
    connections = hostiles.connections();
  }
  EXPECT_GT(connections, 100);
  const std::string log = first.err();
  EXPECT_NE(log.find("the store refused a connection from 127.0.0.1:"), std::string::npos) << log;
  EXPECT_NE(log.find("it doesn't speak tsprun's protocol"), std::string::npos) << log;
  EXPECT_NE(log.find("more connections within a second"), std::string::npos) << log;
  const auto refusals =
      std::ranges::count_if(lines_of(log), [](const std::string& line) { return line.find("refused") != std::string::npos; });
  EXPECT_LT(refusals, connections / 4) << "the flood drowns the log";
}

/// A rank that waits for one who comes late lets in another that has dialed it, though strangers queue behind; whom it refuses
/// is said on stderr.
TEST(Hostiles, AtARanksPortKeepNoRankOut) {
  const TemporaryDirectory directory;
  const int port = free_port();
  const auto node = [&](int index) {
    return std::vector<std::string>{tsprun_path(),
                                    "-n",
                                    "3",
                                    "--timeout",
                                    "20",
                                    "--nnodes",
                                    "3",
                                    "--node-rank",
                                    std::to_string(index),
                                    "--rendezvous",
                                    fmt::format("127.0.0.1:{}", port),
                                    "--inter",
                                    "tcp",
                                    "run",
                                    "--",
                                    "sh",
                                    "-c",
                                    "[ $RANK != 2 ] || until [ -e \"$1\" ]; do sleep 0.05; done; exec \"$0\" sum",
                                    program_path("actor"),
                                    directory.path("go")};
  };
  const ProcessOptions options{.environment = {{"TSP_SECRET", kText}}, .input = {}};
  Process first(node(0), options);
  Process second(node(1), options);
  Process third(node(2), options);
  tcp::AddressBlob where{};
  {
    bootstrap::StoreClient store(fmt::format("127.0.0.1:{}", port), kSecret, 1000, 20'000'000'000);
    std::memcpy(&where, store.get("tcp/0", "rank 0 to say where it listens").data(), sizeof where);
    store.get("tcp/1", "rank 1 to say where it listens");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 1 dials
  std::vector<posix::UniqueFd> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(dial(tcp::unpack(where).port()));
  for (int tries = 0; tries < 1000 && first.err().find("tcp refused a connection") == std::string::npos; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::ofstream(directory.path("go")) << "now";
  for (Process* process : {&first, &second, &third}) {
    EXPECT_EQ(process->wait().code, 0) << process->err();
    EXPECT_EQ(process->out().find("refused"), std::string::npos) << process->out();
  }
  EXPECT_NE(first.err().find("rank 0: tcp refused a connection from 127.0.0.1:"), std::string::npos) << first.err();
}

/// Strangers that connect and say nothing. Who is sent away comes again, as long as the object lives.
class HalfOpen {
 public:
  HalfOpen(int port, std::size_t count) : sockets_(count), keeper_([this, port] { keep(port); }) {}
  HalfOpen(const HalfOpen&) = delete;
  HalfOpen& operator=(const HalfOpen&) = delete;
  ~HalfOpen() {
    over_ = true;
    keeper_.join();
  }
  int connections() const { return connections_; }

 private:
  void keep(int port) {
    while (!over_) {
      for (posix::UniqueFd& socket : sockets_) {
        char byte = 0;
        const ssize_t got = socket ? ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) : 0;
        if (got > 0 || (got < 0 && errno == EAGAIN)) continue;
        socket = dial(port);
        if (socket) ++connections_;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::atomic<bool> over_ = false;
  std::atomic<int> connections_ = 0;
  std::vector<posix::UniqueFd> sockets_;
  std::thread keeper_;
};

/// More of them than `ulimit -n` leaves descriptors: they displace each other, and what the job opens there is room for.
TEST(Hostiles, ThatSayNothingTakeNoDescriptorThatTheJobNeeds) {
  for (const int limit : {40, 60, 80}) {  // 40: what such a job needs
    const int port = free_port();
    const auto node = [&](int index) {
      std::vector<std::string> words = {"sh", "-c", fmt::format("ulimit -n {} && exec \"$0\" \"$@\"", limit)};
      const std::vector<std::string> job =
          tsprun_actor({"-n", "2", "--timeout", "20", "--nnodes", "2", "--node-rank", std::to_string(index), "--rendezvous",
                        fmt::format("127.0.0.1:{}", port)},
                       {"sum", "20"});
      words.insert(words.end(), job.begin(), job.end());
      return words;
    };
    const ProcessOptions options{.environment = {{"TSP_SECRET", kText}}, .input = {}};
    Process first(node(0), options);
    const HalfOpen strangers(port, 64);
    for (int tries = 0; tries < 1000 && strangers.connections() < 64; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_GE(strangers.connections(), 64);
    Process second(node(1), options);
    EXPECT_EQ(second.wait().code, 0) << limit << second.err();
    EXPECT_EQ(first.wait().code, 0) << limit << first.err();
    EXPECT_NE(first.err().find("no file descriptor is left"), std::string::npos) << limit << first.err();
  }
}

}  // namespace
}  // namespace tsprun::detail::test::hostile_test
