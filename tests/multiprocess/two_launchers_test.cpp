// Two tspruns and more that meet at a rendezvous, as on machines of their own. Results are those of one, bit for bit; deaths are
// named on every node; strangers, other jobs and unlike options don't get in.

#include "tests/support/process.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <vector>

namespace tsprun::detail::test::two_launchers_test {
namespace {

int free_port() {
  tcp::SocketAddress any = tcp::resolve("127.0.0.1", 0);
  const posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::bind(socket.get(), any.get(), any.length), 0);
  return tcp::local_address(socket.get()).port();
}

ProcessOptions with(std::map<std::string, std::string> environment) {
  ProcessOptions options;
  options.environment = std::move(environment);
  return options;
}

std::vector<std::string> node_words(int node, int port, std::vector<std::string> more, const std::vector<std::string>& action,
                                    int nodes = 2) {
  more.insert(more.begin(), {"-n", "4", "--log-level", "warn", "--nnodes", std::to_string(nodes), "--node-rank",
                             std::to_string(node), "--rendezvous", fmt::format("127.0.0.1:{}", port)});
  return tsprun_actor(more, action);
}
const ProcessOptions kSecret = with({{"TSP_SECRET", "of this test, and long enough"}});

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
  for (const char* how : {"kill", "stop"}) {
    const TemporaryDirectory directory;
    const int port = free_port();
    const bool stalls = std::string(how) == "stop";
    Process first(
        node_words(0, port, {"--timeout", "6", "--json", directory.path("0")}, {"fail", how, "3", "5", directory.path("time")}),
        kSecret);
    Process second(
        node_words(1, port, {"--timeout", "6", "--json", directory.path("1")}, {"fail", how, "3", "5", directory.path("time")}),
        kSecret);
    EXPECT_NE(first.wait(25).code, 0) << first.err();
    EXPECT_NE(second.wait(25).code, 0) << second.err();
    const double now = static_cast<double>(posix::now_ns()) * 1e-9;
    std::uint64_t died_at = 0;
    std::ifstream(directory.path("time")) >> died_at;
    // A death is told at once, not found at the deadline.
    EXPECT_LT(now - static_cast<double>(died_at) * 1e-9, (stalls ? 6 : 0) + 2.0) << first.err() << second.err();
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
  }
}

// Rank 3 was stopped while it waited for others: that is known on the other node, too.
TEST(TwoLaunchers, AStopInABarrierIsNoDeadlockOnEither) {
  const TemporaryDirectory directory;
  const int port = free_port();
  Process first(node_words(0, port, {"--timeout", "2", "--json", directory.path("0")}, {"stop_in_barrier", "3"}), kSecret);
  Process second(node_words(1, port, {"--timeout", "2", "--json", directory.path("1")}, {"stop_in_barrier", "3"}), kSecret);
  EXPECT_NE(first.wait(15).code, 0) << first.err();
  EXPECT_NE(second.wait(15).code, 0) << second.err();
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
  for (const int victim : {0, 1}) {
    const TemporaryDirectory directory;
    const int port = free_port();
    Process first(node_words(0, port, {"--timeout", "5", "--json", directory.path("0")}, {"loop"}), kSecret);
    Process second(node_words(1, port, {"--timeout", "5", "--json", directory.path("1")}, {"loop"}), kSecret);
    ASSERT_TRUE(first.wait_for_output("ready", 2)) << first.err();
    ASSERT_TRUE(second.wait_for_output("ready", 2)) << second.err();
    Process& killed = victim == 0 ? first : second;
    Process& other = victim == 0 ? second : first;
    killed.signal(SIGKILL);
    EXPECT_NE(other.wait(12).code, 0) << other.err();
    EXPECT_NE(other.err().find(fmt::format("node {}", victim)), std::string::npos) << other.err();
    EXPECT_TRUE(killed.wait_until_nothing_is_left(3));
    EXPECT_TRUE(other.wait_until_nothing_is_left(3));
  }
}

/// All processes of a node stand still, as on a machine that sleeps, until the other node has given it up.
TEST(TwoLaunchers, ANodeThatStoodStillIsNamedOnBoth) {
  for (const int victim : {0, 1}) {
    const TemporaryDirectory directory;
    const int port = free_port();
    Process first(node_words(0, port, {"--timeout", "3", "--json", directory.path("0")}, {"loop"}), kSecret);
    Process second(node_words(1, port, {"--timeout", "3", "--json", directory.path("1")}, {"loop"}), kSecret);
    ASSERT_TRUE(first.wait_for_output("ready", 2)) << first.err();
    ASSERT_TRUE(second.wait_for_output("ready", 2)) << second.err();
    Process& stopped = victim == 0 ? first : second;
    Process& other = victim == 0 ? second : first;
    const std::vector<pid_t> all = stopped.marked();
    for (const pid_t pid : all) ::kill(pid, SIGSTOP);
    EXPECT_NE(other.wait(15).code, 0) << other.err();
    for (const pid_t pid : all) ::kill(pid, SIGCONT);
    EXPECT_NE(stopped.wait(15).code, 0) << stopped.err();
    EXPECT_NE(stopped.err().find("this node's tsprun stood still for "), std::string::npos) << stopped.err();
    for (const char* node : {"0", "1"}) {
      const nlohmann::json failure = read_json(directory.path(node)).at("failure");
      ASSERT_TRUE(failure.is_object()) << node;
      EXPECT_EQ(failure.at("node"), victim) << failure;
      EXPECT_TRUE(failure.at("kind") == "disconnected" || failure.at("kind") == "stalled") << failure;
    }
    EXPECT_TRUE(stopped.wait_until_nothing_is_left(3));
  }
}

TEST(TwoLaunchers, OneThatDoesNotComeIsNamedAtTheDeadline) {
  const int port = free_port();
  Process first(node_words(0, port, {"--timeout", "1"}, {"digest"}, 3), kSecret);
  Process third(node_words(2, port, {"--timeout", "1"}, {"digest"}, 3), kSecret);
  EXPECT_EQ(first.wait(10).code, 2) << first.err();
  EXPECT_EQ(third.wait(10).code, 2) << third.err();
  EXPECT_NE(first.err().find("node 1 of 3"), std::string::npos) << first.err();
  EXPECT_NE(third.err().find("node 1 of 3"), std::string::npos) << third.err();
}

TEST(TwoLaunchers, ThatWereStartedDifferentlyRefuseEachOther) {
  const int port = free_port();
  Process first(node_words(0, port, {}, {"digest"}), kSecret);
  Process second(node_words(1, port, {"--layout", "tp=4"}, {"digest"}), kSecret);
  EXPECT_EQ(first.wait(20).code, 2) << first.err();
  EXPECT_EQ(second.wait(20).code, 2) << second.err();
  EXPECT_NE(first.err().find("tp=4"), std::string::npos) << first.err();
  EXPECT_NE(second.err().find("tp=4"), std::string::npos) << second.err();
}

TEST(TwoLaunchers, ANodeWithoutTheDeviceIsNamedOnBoth) {
  for (const int without : {0, 1}) {
    const int port = free_port();
    const std::vector<std::string> demand = {"--rdma", "nosuch9"};
    Process first(node_words(0, port, without == 0 ? demand : std::vector<std::string>(), {"digest"}), kSecret);
    Process second(node_words(1, port, without == 1 ? demand : std::vector<std::string>(), {"digest"}), kSecret);
    EXPECT_EQ(first.wait(20).code, 2) << first.err();
    EXPECT_EQ(second.wait(20).code, 2) << second.err();
    const std::string what = fmt::format("node {}: --rdma nosuch9: no such device", without);
    EXPECT_NE(first.err().find(what), std::string::npos) << first.err();
    EXPECT_NE(second.err().find(what), std::string::npos) << second.err();
  }
}

TEST(TwoLaunchers, WithoutACommonSecretRefuseEachOther) {
  const int port = free_port();
  Process first(node_words(0, port, {"--timeout", "2"}, {"digest"}), kSecret);
  Process second(node_words(1, port, {"--timeout", "2"}, {"digest"}), with({{"TSP_SECRET", "another one, and long enough"}}));
  EXPECT_EQ(second.wait(20).code, 2) << second.err();
  EXPECT_NE(second.err().find("secret"), std::string::npos) << second.err();
  EXPECT_EQ(first.wait(20).code, 2) << first.err();
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
  EXPECT_EQ(first.wait(10).code, 128 + SIGTERM) << first.err();
  EXPECT_EQ(second.wait(10).code, 128 + SIGTERM) << second.err();
  EXPECT_NE(first.err().find("--node-rank 1 while the job runs"), std::string::npos) << first.err();
}

TEST(TwoLaunchers, ANodeThatLeavesBeforeTheJobBeganMayComeAgain) {
  const int port = free_port();
  Process first(node_words(0, port, {}, {"digest"}, 3), kSecret);
  Process left(node_words(1, port, {}, {"digest"}, 3), kSecret);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  left.signal(SIGTERM);
  left.wait(10);
  Process second(node_words(1, port, {}, {"digest"}, 3), kSecret);
  Process third(node_words(2, port, {}, {"digest"}, 3), kSecret);
  EXPECT_EQ(first.wait(20).code, 0) << first.err();
  EXPECT_EQ(second.wait(20).code, 0) << second.err();
  EXPECT_EQ(third.wait(20).code, 0) << third.err();
  EXPECT_NE(first.err().find("node 1 left before the job began"), std::string::npos) << first.err();
}

/// A tsprun of two that train on one rank each: global options, then those of train.
std::vector<std::string> train_words(int node, int port, const std::string& data, const std::vector<std::string>& global,
                                     const std::vector<std::string>& options) {
  std::vector<std::string> words = {tsprun_path(),
                                    "-n",
                                    "2",
                                    "--nnodes",
                                    "2",
                                    "--node-rank",
                                    std::to_string(node),
                                    "--rendezvous",
                                    fmt::format("127.0.0.1:{}", port)};
  words.insert(words.end(), global.begin(), global.end());
  words.insert(words.end(), {"train", "--config", "nano", "--data", data, "--seq", "16"});
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

TEST(TwoLaunchers, WithUnlikeOptionsSayWhichAndStartNothing) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path("text")) << std::string(3000, 'a');
  const int port = free_port();
  Process first(train_words(0, port, directory.path("text"), {}, {"--lr", "0.1", "--steps", "1"}), kSecret);
  Process second(train_words(1, port, directory.path("text"), {}, {"--lr", "0.2", "--steps", "1"}), kSecret);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(20).code, 2) << process->err();
    EXPECT_NE(process->err().find("--lr 0.2 on node 1, 0.1 on node 0"), std::string::npos) << process->err();
    EXPECT_EQ(process->err().find("--steps"), std::string::npos) << process->err();
  }
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
  EXPECT_EQ(first.wait(40).code, 0) << first.err();
  EXPECT_EQ(second.wait(40).code, 0) << second.err();
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
    EXPECT_EQ(first.wait(40).code, 1) << first.err();
    EXPECT_EQ(second.wait(40).code, 1) << second.err();
    for (Process* process : {&first, &second})
      EXPECT_NE(process->err().find("the job is done, but its trace isn't: --trace /dev/full"), std::string::npos)
          << process->err();
    for (const char* node : {"0", "1"}) EXPECT_EQ(read_json(directory.path(node)).at("failure").at("kind"), "refused") << node;
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
    EXPECT_EQ(process->wait(20).code, 2) << process->err();
    EXPECT_NE(process->err().find("--trace"), std::string::npos) << process->err();
  }
}

/// A tsprun to whom the name `head` has these addresses, in /etc/hosts of a mount namespace of its own. Its ranks say where they
/// find the store, then compute.
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
          "sh",
          "-c",
          "echo store $TSP_STORE; exec \"$0\" digest",
          program_path("actor")};
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
  EXPECT_EQ(first.wait(20).code, 0) << first.err();
  EXPECT_EQ(second.wait(20).code, 0) << second.err();
  EXPECT_NE(first.err().find("refused a connection"), std::string::npos) << first.err();
}

TEST(TheSecret, IsMadeOnFirstUseForItsOwnerAlone) {
  const TemporaryDirectory home;
  const ProcessOptions options = with({{"HOME", home.path("")}});
  const int port = free_port();
  Process first(node_words(0, port, {}, {"digest"}), options);
  Process second(node_words(1, port, {}, {"digest"}), options);
  EXPECT_EQ(first.wait(20).code, 0) << first.err();
  EXPECT_EQ(second.wait(20).code, 0) << second.err();
  const std::string path = home.path(".config/tsprun/secret");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  ::chmod(path.c_str(), 0644);
  const Finished open = run_program(node_words(0, port, {"--secret-file", path}, {"digest"}));
  EXPECT_EQ(open.end.code, 2) << open.describe();
  EXPECT_NE(open.err.find("chmod 600"), std::string::npos) << open.describe();
}

TEST(TheSecret, ThatIsShortIsRefusedWithTheCommandThatMakesAGoodOne) {
  const int port = free_port();
  const Finished typed = run_program(node_words(0, port, {}, {"digest"}), with({{"TSP_SECRET", "fifteen bytes.."}}));
  EXPECT_EQ(typed.end.code, 2) << typed.describe();
  EXPECT_NE(typed.err.find("TSP_SECRET: a secret of 15 bytes can be guessed"), std::string::npos) << typed.describe();
  const TemporaryDirectory folder;
  const std::string path = folder.path("secret");
  std::ofstream(path) << "hunter2\n";
  ::chmod(path.c_str(), 0600);
  const Finished run = run_program(node_words(0, port, {"--secret-file", path}, {"digest"}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  const std::size_t command = run.err.find("(umask 077; ");
  ASSERT_NE(command, std::string::npos) << run.describe();
  // The command makes one that is taken.
  const std::string line = run.err.substr(command, run.err.find(')', command) - command + 1);
  EXPECT_EQ(run_program({"sh", "-c", line}).end.code, 0) << line;
  Process first(node_words(0, port, {"--secret-file", path}, {"digest"}));
  Process second(node_words(1, port, {"--secret-file", path}, {"digest"}));
  EXPECT_EQ(first.wait(20).code, 0) << first.err();
  EXPECT_EQ(second.wait(20).code, 0) << second.err();
}

TEST(TwoLaunchers, ThatDisagreeOnTlsBothSaySo) {
  for (const int with_tls : {0, 1}) {
    SCOPED_TRACE(with_tls);
    const int port = free_port();
    const auto tls = [&](int node) {
      return std::vector<std::string>{"--timeout", "2", "--tls", node == with_tls ? "on" : "off"};
    };
    Process first(node_words(0, port, tls(0), {"digest"}), kSecret);
    Process second(node_words(1, port, tls(1), {"digest"}), kSecret);
    EXPECT_EQ(second.wait(20).code, 2) << second.err();
    EXPECT_EQ(first.wait(20).code, 2) << first.err();
    for (const std::string& said : {first.err(), second.err()})
      EXPECT_NE(said.find("give all nodes the same --tls"), std::string::npos) << said;
  }
}

TEST(TwoLaunchers, WithoutTlsWorkToo) {
  const int port = free_port();
  Process second(node_words(1, port, {"--tls", "off"}, {"digest"}), kSecret);
  Process first(node_words(0, port, {"--tls", "off"}, {"digest"}), kSecret);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
}

TEST(TheSecret, IsNotReadOutOfAFolder) {
  const TemporaryDirectory folder;
  const Finished run = run_program(node_words(0, free_port(), {"--secret-file", folder.path("")}, {"digest"}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("it is a folder"), std::string::npos) << run.describe();
}

TEST(TheSecret, ThatCanNotBeMadeIsRefusedWithAWayOut) {
  const TemporaryDirectory folder;
  const std::string home = folder.path("file");  // a home in which no folder can be made, by whomever
  std::ofstream(home) << "x";
  const Finished run = run_program(node_words(0, free_port(), {}, {"digest"}), with({{"HOME", home}}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("making the secret " + home), std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("Not a directory; name another file by --secret-file"), std::string::npos) << run.describe();
}

TEST(NodeOptions, ThatChangeNothingAreNamedOnce) {
  const std::vector<std::string> typed = {"-n", "2", "--secret-file", "nope", "--rdma", "nosuch9", "--inter", "verbs"};
  const Finished run = run_program(tsprun_actor(typed, {"environment"}));
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const std::vector<std::string> lines = lines_of(run.err);
  ASSERT_EQ(lines.size(), 3U) << run.describe();
  for (const char* option : {"--secret-file nope: no effect", "--rdma nosuch9: no effect", "--inter verbs: no effect"}) {
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [&](const std::string& line) { return line.find(option) != std::string::npos; }),
              1)
        << option << run.describe();
  }
}

}  // namespace
}  // namespace tsprun::detail::test::two_launchers_test
