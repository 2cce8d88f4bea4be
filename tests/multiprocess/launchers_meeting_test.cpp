// How the tspruns of a job come together at a rendezvous: by which address, and who doesn't get in. Strangers, other jobs and
// unlike options are told so.
#include "tests/multiprocess/two_launchers.h"
#include "tests/support/at_once.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace tsprun::detail::test::launchers_meeting_test {
namespace {

TEST(TwoLaunchers, OneThatDoesNotComeIsNamedAtTheDeadline) {
  const int port = free_port();
  Process first(node_words(0, port, {"--timeout", "4"}, {"digest"}, 3), kSecret);
  Process third(node_words(2, port, {"--timeout", "4"}, {"digest"}, 3), kSecret);
  EXPECT_EQ(first.wait().code, 2) << first.err();
  EXPECT_EQ(third.wait().code, 2) << third.err();
  EXPECT_NE(first.err().find("node 1 of 3"), std::string::npos) << first.err();
  EXPECT_NE(third.err().find("node 1 of 3"), std::string::npos) << third.err();
}

TEST(TwoLaunchers, ThatWereStartedDifferentlyRefuseEachOther) {
  const int port = free_port();
  Process first(node_words(0, port, {}, {"digest"}), kSecret);
  Process second(node_words(1, port, {"--layout", "tp=4"}, {"digest"}), kSecret);
  EXPECT_EQ(first.wait().code, 2) << first.err();
  EXPECT_EQ(second.wait().code, 2) << second.err();
  EXPECT_NE(first.err().find("tp=4"), std::string::npos) << first.err();
  EXPECT_NE(second.err().find("tp=4"), std::string::npos) << second.err();
}

TEST(TwoLaunchers, ANodeWithoutTheDeviceIsNamedOnBoth) {
  for (const int without : {0, 1}) {
    const int port = free_port();
    const std::vector<std::string> demand = {"--rdma", "nosuch9"};
    Process first(node_words(0, port, without == 0 ? demand : std::vector<std::string>(), {"digest"}), kSecret);
    Process second(node_words(1, port, without == 1 ? demand : std::vector<std::string>(), {"digest"}), kSecret);
    EXPECT_EQ(first.wait().code, 2) << first.err();
    EXPECT_EQ(second.wait().code, 2) << second.err();
    const std::string what = fmt::format("node {}: --rdma nosuch9: no such device", without);
    EXPECT_NE(first.err().find(what), std::string::npos) << first.err();
    EXPECT_NE(second.err().find(what), std::string::npos) << second.err();
  }
}

TEST(TwoLaunchers, WithoutACommonSecretRefuseEachOther) {
  const int port = free_port();
  Process first(node_words(0, port, {"--timeout", "5"}, {"digest"}), kSecret);
  Process second(node_words(1, port, {"--timeout", "5"}, {"digest"}), with({{"TSP_SECRET", "another one, and long enough"}}));
  EXPECT_EQ(second.wait().code, 2) << second.err();
  EXPECT_NE(second.err().find("secret"), std::string::npos) << second.err();
  EXPECT_EQ(first.wait().code, 2) << first.err();
  EXPECT_NE(first.err().find("node 1"), std::string::npos) << first.err();
}

TEST(TwoLaunchers, ASecondJobOnThePortIsToldSo) {
  const int port = free_port();
  Process first(node_words(0, port, {}, {"loop"}), kSecret);
  Process second(node_words(1, port, {}, {"loop"}), kSecret);
  ASSERT_TRUE(first.wait_for_output("ready", 2)) << first.err();
  const Finished other = run_program(node_words(0, port, {}, {"digest"}), kSecret);
  EXPECT_EQ(other.end.code, 2) << other.describe();
  EXPECT_NE(other.err.find("port is taken"), std::string::npos) << other.describe();
}

TEST(TwoLaunchers, ANodeOfAnotherJobOnThePortIsToldSoAndHurtsNobody) {
  const int port = free_port();
  Process first(node_words(0, port, {}, {"loop"}), kSecret);
  Process second(node_words(1, port, {}, {"loop"}), kSecret);
  ASSERT_TRUE(first.wait_for_output("ready", 2)) << first.err();
  ASSERT_TRUE(second.wait_for_output("ready", 2)) << second.err();
  const Finished other = run_program(node_words(1, port, {}, {"digest"}), kSecret);
  EXPECT_EQ(other.end.code, 2) << other.describe();
  EXPECT_NE(other.err.find("a job has begun at this rendezvous already"), std::string::npos) << other.describe();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().code, 128 + SIGTERM) << first.err();
  EXPECT_EQ(second.wait().code, 128 + SIGTERM) << second.err();
  EXPECT_NE(first.err().find("--node-rank 1 while the job runs"), std::string::npos) << first.err();
}

TEST(TwoLaunchers, ANodeThatLeavesBeforeTheJobBeganMayComeAgain) {
  const int port = free_port();
  Process first(node_words(0, port, {}, {"digest"}, 3), kSecret);
  // On a busy machine a signal may end it before it has come at all.
  const auto was_seen = [&] { return first.err().find("node 1 left before the job began") != std::string::npos; };
  for (int tries = 1; tries <= 5 && !was_seen(); ++tries) {
    Process left(node_words(1, port, {}, {"digest"}, 3), kSecret);
    std::this_thread::sleep_for(std::chrono::milliseconds(500 * tries));
    left.signal(SIGTERM);
    left.wait();
    for (int looks = 0; looks < 50 && !was_seen(); ++looks) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Process second(node_words(1, port, {}, {"digest"}, 3), kSecret);
  Process third(node_words(2, port, {}, {"digest"}, 3), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  EXPECT_EQ(third.wait().code, 0) << third.err();
  EXPECT_TRUE(was_seen()) << first.err();
}

TEST(TwoLaunchers, WithUnlikeOptionsSayWhichAndStartNothing) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path("text")) << std::string(3000, 'a');
  const int port = free_port();
  Process first(train_words(0, port, directory.path("text"), {}, {"--lr", "0.1", "--steps", "1"}), kSecret);
  Process second(train_words(1, port, directory.path("text"), {}, {"--lr", "0.2", "--steps", "1"}), kSecret);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait().code, 2) << process->err();
    EXPECT_NE(process->err().find("--lr 0.2 on node 1, 0.1 on node 0"), std::string::npos) << process->err();
    EXPECT_EQ(process->err().find("--steps"), std::string::npos) << process->err();
  }
}

/// As under srun, whose tasks all have one command line.
TEST(TwoLaunchers, ThatShareAReportsFileKeepNodeZeros) {
  const TemporaryDirectory directory;
  const std::string shared = directory.path("report.json");
  const int port = free_port();
  const auto words = [&](int node) {
    return node_words(node, port, {"--json", shared, "bench", "all_reduce", "--sizes", "1K", "--min-time", "0.01"});
  };
  Process first(words(0), kSecret);
  Process second(words(1), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  std::ifstream file(shared);
  const nlohmann::json report = nlohmann::json::parse(file);
  EXPECT_EQ(report.at("bench").size(), 1U) << report.dump();
  EXPECT_TRUE(report.at("failure").is_null()) << report.dump();
}

/// A value that JSON can't hold is compared all the same.
TEST(TwoLaunchers, CompareOptionsThatAreNoUtf8) {
  const auto generate = [](int node, int port, const char* prompt) {
    return node_words(node, port, {"generate", "--config", "nano", "--prompt", prompt, "--tokens", "2"});
  };
  {
    const int port = free_port();
    Process first(generate(0, port, "caf\xe9"), kSecret);
    Process second(generate(1, port, "caf\xe9"), kSecret);
    EXPECT_EQ(first.wait().code, 0) << first.err();
    EXPECT_EQ(second.wait().code, 0) << second.err();
  }
  const int port = free_port();
  Process first(generate(0, port, "caf\xe9"), kSecret);
  Process second(generate(1, port, "caf\xe8"), kSecret);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait().code, 2) << process->err();
    EXPECT_NE(process->err().find("--prompt bytes "), std::string::npos) << process->err();
  }
}

TEST(TwoLaunchers, OfWhichOneTracesRefuseEachOther) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path("text")) << std::string(3000, 'a');
  const int port = free_port();
  Process first(train_words(0, port, directory.path("text"), {"--trace", directory.path("trace.json")}, {"--steps", "2"}),
                kSecret);
  Process second(train_words(1, port, directory.path("text"), {}, {"--steps", "2"}), kSecret);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait().code, 2) << process->err();
    EXPECT_NE(process->err().find("--trace"), std::string::npos) << process->err();
  }
}

/// A tsprun to whom the name `head` has these addresses, in /etc/hosts of a mount namespace of its own. Its ranks say where they
/// find the store.
std::vector<std::string> to_whom_head_is(const std::vector<std::string>& addresses, const std::string& hosts, int node, int port,
                                         const std::string& timeout) {
  std::ofstream file(hosts);
  for (const std::string& address : addresses) file << address << " head\n";
  return {"unshare",
          "-m",
          "sh",
          "-c",
          "mount --bind \"$0\" /etc/hosts && exec \"$@\"",
          hosts,
          tsprun_path(),
          "-n",
          "4",
          "--log-level",
          "warn",
          "--nnodes",
          "2",
          "--node-rank",
          std::to_string(node),
          "--rendezvous",
          fmt::format("head:{}", port),
          "--timeout",
          timeout,
          "run",
          "--",
          program_path("actor"),
          "store"};
}

class NameOfManyAddresses : public testing::Test {
 protected:
  void SetUp() override {
    Process probe({"unshare", "-m", "sh", "-c", "mount --bind /dev/null /etc/hosts"});
    if (probe.wait().code != 0) GTEST_SKIP() << "a mount namespace of its own needs root: " << probe.err();
  }
  TemporaryDirectory folder_;
};

/// Node 0's first address is no machine's; node 1 knows one where nobody listens before it comes to the right one.
TEST_F(NameOfManyAddresses, MeetsAtOneThatWorks) {
  const int port = free_port();
  Process first(to_whom_head_is({"192.0.2.77", "127.0.0.1", "127.0.0.2"}, folder_.path("0"), 0, port, "20"), kSecret);
  Process second(to_whom_head_is({"127.0.0.3", "127.0.0.2"}, folder_.path("1"), 1, port, "20"), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  // Node 0's ranks are where node 1 has reached it, though node 0 itself knows another address that works.
  for (Process* process : {&first, &second})
    EXPECT_TRUE(process->wait_for_output(fmt::format("store 127.0.0.2:{}", port), 2)) << process->out();
}

TEST_F(NameOfManyAddresses, IsRefusedWithAllOfThem) {
  const int port = free_port();
  Process nobody(to_whom_head_is({"127.0.0.3", "127.0.0.2"}, folder_.path("1"), 1, port, "1"), kSecret);
  Process elsewhere(to_whom_head_is({"192.0.2.77", "192.0.2.78"}, folder_.path("0"), 0, port, "1"), kSecret);
  EXPECT_EQ(nobody.wait().code, 2) << nobody.err();
  for (const char* host : {"127.0.0.3", "127.0.0.2"})
    EXPECT_NE(nobody.err().find(fmt::format("{}:{}: Connection refused", host, port)), std::string::npos) << nobody.err();
  EXPECT_EQ(elsewhere.wait().code, 2) << elsewhere.err();
  EXPECT_NE(elsewhere.err().find("none of these addresses is one of this machine"), std::string::npos) << elsewhere.err();
}

TEST(TwoLaunchers, StrangersAtTheStoreHurtNobody) {
  const int port = free_port();
  Process first(node_words(0, port, {"--timeout", "20"}, {"digest"}), kSecret);
  const tcp::SocketAddress where = tcp::resolve("127.0.0.1", static_cast<std::uint16_t>(port));
  std::vector<posix::UniqueFd> strangers;
  const std::uint64_t ends = posix::now_ns() + 10'000'000'000;
  while (strangers.size() < 100 && posix::now_ns() < ends) {
    posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(socket.get(), where.get(), where.length) != 0) continue;
    const std::string garbage = strangers.size() % 3 == 0 ? std::string() : std::string(strangers.size() * 50, 'x');
    ::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(socket));
  }
  ASSERT_EQ(strangers.size(), 100U);
  Process second(node_words(1, port, {"--timeout", "20"}, {"digest"}), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  EXPECT_NE(first.err().find("refused a connection"), std::string::npos) << first.err();
}

TEST(TwoLaunchers, ThatDisagreeOnTlsBothSaySo) {
  at_once(std::vector{0, 1}, [](int with_tls) {
    SCOPED_TRACE(with_tls);
    const int port = free_port();
    const auto tls = [&](int node) {
      return std::vector<std::string>{"--timeout", "5", "--tls", node == with_tls ? "on" : "off"};
    };
    Process first(node_words(0, port, tls(0), {"digest"}), kSecret);
    Process second(node_words(1, port, tls(1), {"digest"}), kSecret);
    EXPECT_EQ(second.wait().code, 2) << second.err();
    EXPECT_EQ(first.wait().code, 2) << first.err();
    for (const std::string& said : {first.err(), second.err()})
      EXPECT_NE(said.find("give all nodes the same --tls"), std::string::npos) << said;
  });
}

TEST(NodeOptions, ThatChangeNothingAreNamedOnce) {
  const std::vector<std::string> typed = {"-n", "2", "--secret-file", "nope", "--inter", "verbs"};
  const Finished run = run_program(tsprun_actor(typed, {"environment"}));
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const std::vector<std::string> lines = lines_of(run.err);
  ASSERT_EQ(lines.size(), 2U) << run.describe();
  for (const char* option : {"--secret-file nope: no effect", "--inter verbs: no effect"}) {
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [&](const std::string& line) { return line.find(option) != std::string::npos; }),
              1)
        << option << run.describe();
  }
}

}  // namespace
}  // namespace tsprun::detail::test::launchers_meeting_test
