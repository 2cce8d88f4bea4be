// Two tspruns and more that run one job, as on machines of their own. Results are those of one, bit for bit; deaths are named on
// every node.
#include "tests/multiprocess/two_launchers.h"
#include "tests/support/at_once.h"
#include "tests/support/on_path.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::two_launchers_test {
namespace {

TEST(TwoLaunchers, GiveTheBitsOfOne) {
  const Finished shared = run_program(tsprun_actor({"-n", "4", "--log-level", "warn"}, {"digest"}));
  const int port = free_port();
  Process second(node_words(1, port, {}, {"digest"}), kSecret);
  Process first(node_words(0, port, {}, {"digest"}), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  EXPECT_EQ(lines_of(first.out()).size(), 2U);
  EXPECT_EQ(sorted_lines(first.out() + second.out()), sorted_lines(shared.out)) << first.out() << second.out();
}

TEST(TwoLaunchers, ADeathOnOneIsNamedOnBoth) {
  at_once(std::vector<std::string>{"kill", "stop"}, [](const std::string& how) {
    const TemporaryDirectory directory;
    const int port = free_port();
    const bool stalls = how == "stop";
    const PatientWatch watch;
    const std::string deadline = stalls ? "2" : "20";
    Process first(node_words(0, port, {"--timeout", deadline, "--json", directory.path("0")},
                             {"fail", how, "3", "5", directory.path("time")}),
                  kSecret);
    Process second(node_words(1, port, {"--timeout", deadline, "--json", directory.path("1")},
                              {"fail", how, "3", "5", directory.path("time")}),
                   kSecret);
    EXPECT_NE(first.wait().code, 0) << first.err();
    EXPECT_NE(second.wait().code, 0) << second.err();
    const double now = static_cast<double>(posix::now_ns()) * 1e-9;
    const double pace = watch.pace();
    std::uint64_t died_at = 0;
    std::ifstream(directory.path("time")) >> died_at;
    // A death is told at once, not found at the deadline.
    EXPECT_LT(pace * (now - static_cast<double>(died_at) * 1e-9), (stalls ? 2 : 0) + 2.0) << first.err() << second.err();
    for (const char* node : {"0", "1"}) {
      const nlohmann::json failure = read_json(directory.path(node)).at("failure");
      ASSERT_TRUE(failure.is_object()) << node;
      EXPECT_EQ(failure.at("kind"), stalls ? "stalled" : "killed") << failure;
      EXPECT_EQ(failure.at("rank"), 3) << failure;
      EXPECT_EQ(failure.at("node"), 1) << failure;
      EXPECT_EQ(failure.at("op"), "all_reduce") << failure;
    }
    EXPECT_TRUE(first.wait_until_nothing_is_left(2));
    EXPECT_TRUE(second.wait_until_nothing_is_left(2));
  });
}

// Rank 3 was stopped while it waited for others: that is known on the other node, too.
TEST(TwoLaunchers, AStopInABarrierIsNoDeadlockOnEither) {
  const TemporaryDirectory directory;
  const int port = free_port();
  Process first(node_words(0, port, {"--timeout", "2", "--json", directory.path("0")}, {"stop_in_barrier", "3"}), kSecret);
  Process second(node_words(1, port, {"--timeout", "2", "--json", directory.path("1")}, {"stop_in_barrier", "3"}), kSecret);
  EXPECT_NE(first.wait().code, 0) << first.err();
  EXPECT_NE(second.wait().code, 0) << second.err();
  for (const char* node : {"0", "1"}) {
    const nlohmann::json failure = read_json(directory.path(node)).at("failure");
    ASSERT_TRUE(failure.is_object()) << node;
    EXPECT_EQ(failure.at("kind"), "stalled") << failure;
    EXPECT_EQ(failure.at("rank"), 3) << failure;
    EXPECT_EQ(failure.at("node"), 1) << failure;
    EXPECT_EQ(failure.at("op"), "barrier") << failure;
  }
  for (Process* process : {&first, &second})
    EXPECT_NE(process->err().find("; rank 3 is stopped\n"), std::string::npos) << process->err();
}

TEST(TwoLaunchers, ALauncherThatIsKilledIsNamedByTheOther) {
  at_once(std::vector{0, 1}, [](int victim) {
    const TemporaryDirectory directory;
    const int port = free_port();
    Process first(node_words(0, port, {"--timeout", "5", "--json", directory.path("0")}, {"loop"}), kSecret);
    Process second(node_words(1, port, {"--timeout", "5", "--json", directory.path("1")}, {"loop"}), kSecret);
    ASSERT_TRUE(first.wait_for_output("ready", 2)) << first.err();
    ASSERT_TRUE(second.wait_for_output("ready", 2)) << second.err();
    Process& killed = victim == 0 ? first : second;
    Process& other = victim == 0 ? second : first;
    killed.signal(SIGKILL);
    EXPECT_NE(other.wait().code, 0) << other.err();
    EXPECT_NE(other.err().find(fmt::format("node {}", victim)), std::string::npos) << other.err();
    EXPECT_TRUE(killed.wait_until_nothing_is_left(3));
    EXPECT_TRUE(other.wait_until_nothing_is_left(3));
  });
}

/// All processes of a node stand still, as on a machine that sleeps, until the other node has given it up.
TEST(TwoLaunchers, ANodeThatStoodStillIsNamedOnBoth) {
  at_once(std::vector{0, 1}, [](int victim) {
    const TemporaryDirectory directory;
    const int port = free_port();
    Process first(node_words(0, port, {"--timeout", "2", "--json", directory.path("0")}, {"loop"}), kSecret);
    Process second(node_words(1, port, {"--timeout", "2", "--json", directory.path("1")}, {"loop"}), kSecret);
    ASSERT_TRUE(first.wait_for_output("ready", 2)) << first.err();
    ASSERT_TRUE(second.wait_for_output("ready", 2)) << second.err();
    Process& stopped = victim == 0 ? first : second;
    Process& other = victim == 0 ? second : first;
    const std::vector<pid_t> all = stopped.marked();
    for (const pid_t pid : all) ::kill(pid, SIGSTOP);
    EXPECT_NE(other.wait().code, 0) << other.err();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // clearly longer than the deadline
    for (const pid_t pid : all) ::kill(pid, SIGCONT);
    EXPECT_NE(stopped.wait().code, 0) << stopped.err();
    EXPECT_NE(stopped.err().find("this node's tsprun stood still for "), std::string::npos) << stopped.err();
    for (const char* node : {"0", "1"}) {
      const nlohmann::json failure = read_json(directory.path(node)).at("failure");
      ASSERT_TRUE(failure.is_object()) << node;
      EXPECT_EQ(failure.at("node"), victim) << failure;
      EXPECT_TRUE(failure.at("kind") == "disconnected" || failure.at("kind") == "stalled") << failure;
    }
    EXPECT_TRUE(stopped.wait_until_nothing_is_left(3));
  });
}

TEST(TwoLaunchers, GoOnTogetherAfterARankWasKilled) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path("text")) << std::string(3000, 'a');
  const int port = free_port();
  const auto train = [&](int node) {
    return train_words(node, port, directory.path("text"),
                       {"--fault", "kill:rank=1,step=4", "--json", directory.path(std::to_string(node))},
                       {"--steps", "6", "--save", directory.path("saved"), "--save-every", "2", "--max-restarts", "1"});
  };
  Process first(train(0), kSecret);
  Process second(train(1), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  for (const char* node : {"0", "1"}) EXPECT_EQ(read_json(directory.path(node)).at("restarts"), 1) << node;
}

TEST(TwoLaunchers, ATraceThatCanNotBeWrittenFailsOnBoth) {
  for (const int failing : {0, 1}) {
    const TemporaryDirectory directory;
    std::ofstream(directory.path("text")) << std::string(3000, 'a');
    const int port = free_port();
    const auto train = [&](int node) {
      return train_words(node, port, directory.path("text"),
                         {"--trace", node == failing ? "/dev/full" : directory.path("trace.json"), "--json",
                          directory.path(std::to_string(node))},
                         {"--steps", "2"});
    };
    Process first(train(0), kSecret);
    Process second(train(1), kSecret);
    EXPECT_EQ(first.wait().code, 1) << first.err();
    EXPECT_EQ(second.wait().code, 1) << second.err();
    for (Process* process : {&first, &second})
      EXPECT_NE(process->err().find("the job is done, but its trace isn't: --trace /dev/full"), std::string::npos)
          << process->err();
    for (const char* node : {"0", "1"}) EXPECT_EQ(read_json(directory.path(node)).at("failure").at("kind"), "refused") << node;
  }
}

/// Nodes may share the folder or not: each has a file for its own ranks.
TEST(TwoLaunchers, TraceAProgramsRanksInAFileOfEachNode) {
  const TemporaryDirectory directory;
  const int port = free_port();
  const auto words = [&](int node) { return node_words(node, port, {"--trace", directory.path("all.json")}, {"sum", "2"}); };
  Process first(words(0), kSecret);
  Process second(words(1), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  for (const int node : {0, 1}) {
    std::map<int, int> sums;  // by rank
    const nlohmann::json trace = read_json(directory.path(node == 0 ? "all.json" : "all.node1.json"));
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      sums[event.at("pid")] += event.at("ph") == "X" && event.at("name") == "all_reduce" ? 1 : 0;
    }
    EXPECT_EQ(sums, (std::map<int, int>{{2 * node, 6}, {2 * node + 1, 6}})) << node;
  }
}

TEST(TwoLaunchers, WithoutTlsWorkToo) {
  const int port = free_port();
  Process second(node_words(1, port, {"--tls", "off"}, {"digest"}), kSecret);
  Process first(node_words(0, port, {"--tls", "off"}, {"digest"}), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
}

/// Returns whether somebody listens at a port of loopback.
bool listens(int port) {
  const tcp::SocketAddress where = tcp::resolve("127.0.0.1", static_cast<std::uint16_t>(port));
  const posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(socket.get(), where.get(), where.length) == 0;
}

/// Whoever of the two finds it, with TLS and without: both say what happened, and neither blames a rank.
TEST(TwoLaunchers, DamageBetweenThemIsOneVerdictOnBoth) {
  for (const char* tls : {"on", "off"}) {
    for (const bool outward : {true, false}) {
      const TemporaryDirectory directory;
      const int port = free_port();
      std::atomic<bool> armed = false;
      const OnPath::Meddle meddle = [&](OnPath::Bytes bytes) {
        if (armed.exchange(false)) bytes.back() ^= std::byte{1};
        return std::optional(std::move(bytes));
      };
      const OnPath attacker(tcp::resolve("127.0.0.1", static_cast<std::uint16_t>(port)), outward ? meddle : OnPath::Meddle(),
                            outward ? OnPath::Meddle() : meddle);
      const auto words = [&](int node, int to) {
        return node_words(node, to, {"--tls", tls, "--json", directory.path(std::to_string(node))}, {"loop"});
      };
      Process first(words(0, port), kSecret);
      for (int tries = 0; tries < 1000 && !listens(port); ++tries) ::usleep(10'000);  // the attacker's victim must be there
      Process second(words(1, attacker.where().port()), kSecret);
      ASSERT_TRUE(first.wait_for_output("ready")) << first.err() << second.err();
      armed = true;
      EXPECT_EQ(first.wait(40).code, 1) << first.err();
      EXPECT_EQ(second.wait(40).code, 1) << second.err();
      const nlohmann::json here = read_json(directory.path("0")).at("failure");
      const nlohmann::json there = read_json(directory.path("1")).at("failure");
      EXPECT_EQ(here.at("kind"), "corrupt") << here;
      EXPECT_EQ(here.at("rank"), nullptr) << here;
      EXPECT_EQ(here.at("detail"), there.at("detail"));
      EXPECT_EQ(there.at("kind"), "corrupt") << there;
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::two_launchers_test
