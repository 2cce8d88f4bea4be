// How jobs on several nodes end: all nodes report one verdict and one exit code, though what they say last is long on its way,
// and a node that doesn't come again for a restart leaves the job's history whole.

#include "tests/support/free_port.h"
#include "tests/support/process.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <deque>
#include <fstream>
#include <map>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::test::endings_test {
namespace {

posix::UniqueFd listen_anywhere() {
  tcp::SocketAddress any = tcp::resolve("127.0.0.1", 0);
  posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(socket.get(), any.get(), any.length), 0);
  EXPECT_EQ(::listen(socket.get(), 16), 0);
  return socket;
}
int port_of(const posix::UniqueFd& socket) { return tcp::local_address(socket.get()).port(); }

/// A way to a port that holds bytes for a while, in either direction. Bytes that are still on it when their sender closes are
/// lost: nobody is left who could send them again.
class SlowWay {
 public:
  explicit SlowWay(int port) : port_(port), listener_(listen_anywhere()), thread_([this] { serve(); }) {}
  SlowWay(const SlowWay&) = delete;
  SlowWay& operator=(const SlowWay&) = delete;
  ~SlowWay() {
    over_ = true;
    thread_.join();
  }
  int port() const { return port_of(listener_); }
  /// Sets how long bytes take from now on, towards the port and back.
  void slow_down(std::uint64_t there_ms, std::uint64_t back_ms) {
    delay_[0] = there_ms * 1'000'000;
    delay_[1] = back_ms * 1'000'000;
  }

 private:
  struct Half {
    std::deque<std::pair<std::uint64_t, std::string>> on_the_way;  // when it arrives, what
    bool closed = false;
  };
  struct Link {
    posix::UniqueFd ends[2];  // who came; the port
    Half halves[2];           // from ends[i]
  };

  void serve() {
    while (!over_) {
      std::vector<pollfd> watched = {{listener_.get(), POLLIN, 0}};
      for (const Link& link : links_) {
        for (int i : {0, 1}) watched.push_back({link.halves[i].closed ? -1 : link.ends[i].get(), POLLIN, 0});
      }
      ::poll(watched.data(), watched.size(), 2);
      for (std::size_t i = 1; i < watched.size(); ++i) {
        if (watched[i].revents != 0) take(links_[(i - 1) / 2], static_cast<int>((i - 1) % 2));
      }
      for (Link& link : links_) deliver(link);
      if (watched[0].revents != 0) let_in();
    }
  }
  void let_in() {
    Link link;
    link.ends[0] = posix::UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const tcp::SocketAddress where = tcp::resolve("127.0.0.1", static_cast<std::uint16_t>(port_));
    // Node 0 may not listen there yet.
    for (const std::uint64_t ends = posix::now_ns() + 20'000'000'000; link.ends[0] && !over_ && posix::now_ns() < ends;) {
      link.ends[1] = posix::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(link.ends[1].get(), where.get(), where.length) == 0) {
        links_.push_back(std::move(link));
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  void take(Link& link, int from) {
    char bytes[65536];
    const ssize_t got = ::recv(link.ends[from].get(), bytes, sizeof bytes, MSG_DONTWAIT);
    Half& half = link.halves[from];
    if (got > 0) {
      half.on_the_way.emplace_back(posix::now_ns() + delay_[from], std::string(bytes, static_cast<std::size_t>(got)));
      return;
    }
    half.closed = true;
    half.on_the_way.clear();
    ::shutdown(link.ends[1 - from].get(), SHUT_WR);
  }
  void deliver(Link& link) {
    for (int from : {0, 1}) {
      auto& queue = link.halves[from].on_the_way;
      while (!queue.empty() && queue.front().first <= posix::now_ns()) {
        const std::string& bytes = queue.front().second;
        ::send(link.ends[1 - from].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        queue.pop_front();
      }
    }
  }

  int port_;
  posix::UniqueFd listener_;
  std::vector<Link> links_;
  std::atomic<std::uint64_t> delay_[2] = {0, 0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

ProcessOptions secret() {
  ProcessOptions options;
  options.environment["TSP_SECRET"] = "that of the tests of endings";
  return options;
}

std::vector<std::string> node_words(int node, int port, const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "-n", "2", "--nnodes", "2", "--node-rank", std::to_string(node), "--rendezvous", fmt::format("127.0.0.1:{}", port)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<std::string> program(int node, int port, const std::string& script) {
  std::vector<std::string> words = node_words(node, port, {"--timeout", "8"});
  words.insert(words.begin(), tsprun_path());
  words.insert(words.end(), {"run", "--", "sh", "-c", script});
  return words;
}

struct Case {
  std::uint64_t there_ms;
  std::uint64_t back_ms;
  int code;  ///< of rank 1's program
};
class Endings : public testing::TestWithParam<Case> {};

/// Node 1 reaches node 0 by a way that becomes slow while the job runs, in one direction or the other, and longer than any second
/// that a tsprun might linger.
TEST_P(Endings, AreOneVerdictThoughLastWordsTakeSeconds) {
  const int port = free_port();
  SlowWay way(port);
  const std::string script = fmt::format("echo ready; sleep 0.5; [ $RANK = 0 ] || exit {}", GetParam().code);
  Process first(program(0, port, script), secret());
  Process second(program(1, way.port(), script), secret());
  ASSERT_TRUE(first.wait_for_output("ready")) << first.err();
  ASSERT_TRUE(second.wait_for_output("ready")) << second.err();
  way.slow_down(GetParam().there_ms, GetParam().back_ms);
  EXPECT_EQ(first.wait().code, GetParam().code) << first.err();
  EXPECT_EQ(second.wait().code, GetParam().code) << second.err();
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->err().find("is lost"), std::string::npos) << process->err();
    if (GetParam().code != 0) {
      EXPECT_NE(process->err().find("rank 1 exited with code 3"), std::string::npos) << process->err();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Endings, testing::Values(Case{700, 0, 0}, Case{0, 1300, 0}, Case{700, 0, 3}, Case{0, 1300, 3}));

TEST(Ending, OfANodeThatNeverAcknowledgesIsAFailure) {
  const int port = free_port();
  SlowWay way(port);
  const std::string script = "echo ready; sleep 3";
  std::vector<std::string> words[2] = {program(0, port, script), program(1, way.port(), script)};
  for (auto& each : words) *(std::find(each.begin(), each.end(), "8")) = "6";
  Process first(words[0], secret());
  Process second(words[1], secret());
  ASSERT_TRUE(first.wait_for_output("ready")) << first.err();
  ASSERT_TRUE(second.wait_for_output("ready")) << second.err();
  way.slow_down(60'000, 60'000);
  EXPECT_EQ(first.wait().code, 1) << first.err();
  EXPECT_EQ(second.wait().code, 1) << second.err();
  EXPECT_NE(first.err().find("node 1 (ranks 1 to 1) is lost"), std::string::npos) << first.err();
  EXPECT_NE(second.err().find("node 0 (ranks 0 to 0) is lost"), std::string::npos) << second.err();
}

class Restart : public testing::TestWithParam<int> {};

/// Steps and attempts of what had been done stay in the report, and the exit code is that of a job that failed.
TEST_P(Restart, WithoutANodeKeepsTheHistory) {
  const int lost = GetParam();
  const TemporaryDirectory folder;
  std::ofstream(folder.path("text")) << std::string(3000, 'a');
  const int port = free_port();
  const auto train = [&](int node) {
    std::vector<std::string> words = node_words(node, port,
                                                {"--timeout",
                                                 "5",
                                                 "--json",
                                                 folder.path(std::to_string(node)),
                                                 "train",
                                                 "--config",
                                                 "nano",
                                                 "--data",
                                                 folder.path("text"),
                                                 "--seq",
                                                 "16",
                                                 "--steps",
                                                 "1000000",
                                                 "--save",
                                                 folder.path("saved"),
                                                 "--save-every",
                                                 "5",
                                                 "--keep",
                                                 "2",
                                                 "--max-restarts",
                                                 "2"});
    words.insert(words.begin(), tsprun_path());
    return words;
  };
  Process first(train(0), secret());
  Process second(train(1), secret());
  ASSERT_TRUE(first.wait_for_output("saved", 1)) << first.err();
  (lost == 0 ? first : second).signal(SIGKILL);
  Process& other = lost == 0 ? second : first;
  EXPECT_EQ(other.wait().code, 1) << other.err();
  EXPECT_NE(other.err().find("restart 1 of 2 couldn't begin"), std::string::npos) << other.err();
  const nlohmann::json report = read_json(folder.path(std::to_string(1 - lost)));
  EXPECT_EQ(report.at("failure").at("kind"), "disconnected") << report.at("failure");
  EXPECT_EQ(report.at("failure").at("node"), lost) << report.at("failure");
  EXPECT_EQ(report.at("failure").at("rank"), lost) << report.at("failure");
  ASSERT_EQ(report.at("attempts").size(), 1U) << report.at("attempts");
  EXPECT_EQ(report.at("attempts").at(0).at("failure").at("node"), lost);
  EXPECT_EQ(report.at("restarts"), 1);
  if (lost == 1) {
    EXPECT_GE(report.at("steps").size(), 5U);  // node 0 has rank 0, which tells of steps
  }
}

INSTANTIATE_TEST_SUITE_P(Lost, Restart, testing::Values(0, 1));

}  // namespace
}  // namespace tsprun::detail::test::endings_test
