// Ranks that share no memory: on pretended nodes of one machine, on sockets by choice, and under two tspruns that meet at a
// rendezvous. Results are those of shared memory, bit for bit; deaths are named on every node; strangers don't get in.

#include "tests/support/process.h"
#include "transport/machine.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <vector>

namespace tsp::test::nodes_test {
namespace {

int free_port() {
  tcp::SocketAddress any = tcp::resolve("127.0.0.1", 0);
  const posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::bind(socket.get(), any.get(), any.length), 0);
  return tcp::local_address(socket.get()).port();
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

Finished digest(std::vector<std::string> options) {
  options.insert(options.begin(), {"--log-level", "warn"});
  return run_program(tsprun_actor(options, {"digest"}));
}

TEST(NoSharedMemory, CollectivesGiveTheBitsOfSharedMemory) {
  for (const char* ranks : {"2", "3", "5"}) {
    const Finished shared = digest({"-n", ranks});
    ASSERT_EQ(shared.end.code, 0) << shared.describe();
    ASSERT_EQ(lines_of(shared.out).size(), static_cast<std::size_t>(std::stoi(ranks))) << shared.describe();
    for (const std::vector<std::string>& way : {std::vector<std::string>{"--intra", "tcp"},
                                                {"--nodes", "2"},
                                                {"--nodes", ranks, "--inter", "tcp"},
                                                {"--nodes", "2", "--intra", "tcp"}}) {
      std::vector<std::string> options = {"-n", ranks};
      options.insert(options.end(), way.begin(), way.end());
      const Finished run = digest(options);
      EXPECT_EQ(run.end.code, 0) << run.describe();
      EXPECT_EQ(sorted_lines(run.out), sorted_lines(shared.out)) << way[0] << " " << way[1] << run.describe();
    }
  }
}

TEST(NoSharedMemory, TheReportSaysWhichTransportAndWhy) {
  const TemporaryDirectory directory;
  const Finished run = run_program(tsprun_actor({"-n", "5", "--nodes", "2", "--json", directory.path("r")}, {"sum", "1"}));
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const bool rdma = std::filesystem::exists("/sys/class/infiniband") && !std::filesystem::is_empty("/sys/class/infiniband");
  const nlohmann::json report = read_json(directory.path("r"));
  EXPECT_EQ(report.at("nodes"), 2);
  ASSERT_EQ(report.at("transports").size(), 20U);
  for (const nlohmann::json& way : report.at("transports")) {
    const bool same = (way.at("from") < 3) == (way.at("to") < 3);
    EXPECT_EQ(way.at("kind"), same ? "shm" : rdma ? "verbs" : "tcp") << way;
    const std::string why = way.at("why");
    EXPECT_NE(why.find(same ? "same node" : "RDMA"), std::string::npos) << why;
  }
  EXPECT_NE(run.err.find(rdma ? "info: verbs for 6 pairs of ranks: nodes 0 and 1; RDMA"
                              : "info: tcp for 6 pairs of ranks: nodes 0 and 1; no RDMA: node 0: there is no RDMA device"),
            std::string::npos)
      << run.describe();
}

/// The other transport of this machine's pretended nodes.
const char* across_nodes() {
  return std::filesystem::exists("/sys/class/infiniband") && !std::filesystem::is_empty("/sys/class/infiniband") ? "verbs"
                                                                                                                 : "tcp";
}

/// What `bench` of these ranks says of its transports: the head's line, and those of rows by operation.
struct BenchSays {
  std::string head;
  std::map<std::string, std::string> rows;
};

BenchSays bench_says(std::vector<std::string> options) {
  const TemporaryDirectory directory;
  options.insert(options.end(), {"--json", directory.path("r"), "bench", "pingpong,all_reduce", "--sizes", "1K", "--iters", "2"});
  const Finished run = run_tsprun(options);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  BenchSays says;
  says.head = lines_of(run.out).empty() ? "" : lines_of(run.out).front();
  const nlohmann::json report = read_json(directory.path("r"));
  for (const nlohmann::json& row : report.at("bench")) says.rows[row.at("op")] = row.at("transport");
  return says;
}

// Ranks 0 and 1 share memory in the first case, which isn't what most pairs use.
TEST(NoSharedMemory, BenchNamesTheTransportsOfAllPairsAndTheMachinesCores) {
  const std::string across = across_nodes();
  const int cores = machine::usable_cores();
  const std::string on = fmt::format(" on {} core{}, transport ", cores, cores == 1 ? "" : "s");
  const BenchSays two = bench_says({"-n", "4", "--nodes", "2"});
  EXPECT_TRUE(two.head.ends_with("4 ranks" + on + "shm+" + across)) << two.head;
  EXPECT_EQ(two.rows.at("all_reduce"), "shm+" + across);
  EXPECT_EQ(two.rows.at("pingpong"), "shm");
  const BenchSays apart = bench_says({"-n", "2", "--nodes", "2"});
  EXPECT_TRUE(apart.head.ends_with("2 ranks" + on + across)) << apart.head;
  EXPECT_EQ(apart.rows.at("all_reduce"), across);
  EXPECT_EQ(apart.rows.at("pingpong"), across);
  const BenchSays together = bench_says({"-n", "2"});
  EXPECT_TRUE(together.head.ends_with("2 ranks" + on + "shm")) << together.head;
  EXPECT_EQ(together.rows.at("all_reduce"), "shm");
}

TEST(NoSharedMemory, RanksKnowWhereTheyAre) {
  const Finished run = run_program(tsprun_actor({"-n", "5", "--nodes", "2"}, {"environment"}));
  ASSERT_EQ(run.end.code, 0) << run.describe();
  EXPECT_NE(run.out.find("[4] LOCAL_RANK=1"), std::string::npos) << run.describe();
  EXPECT_NE(run.out.find("[4] LOCAL_WORLD_SIZE=2"), std::string::npos) << run.describe();
}

struct Ending {
  const char* how;
  const char* kind;
  int deadline;
};

class DeathAcrossNodes : public testing::TestWithParam<Ending> {};

TEST_P(DeathAcrossNodes, IsNamedWithItsNode) {
  const Ending& end = GetParam();
  for (const char* how : {"--nodes", "--intra"}) {
    const TemporaryDirectory directory;
    const bool nodes = std::string(how) == "--nodes";
    const Finished run =
        run_program(tsprun_actor({"-n", "4", how, nodes ? "2" : "tcp", "--timeout", "2", "--json", directory.path("r")},
                                 {"fail", end.how, "3", "5", directory.path("time")}));
    const double now = static_cast<double>(posix::now_ns()) * 1e-9;
    EXPECT_NE(run.end.code, 0) << run.describe();
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), end.kind) << failure;
    EXPECT_EQ(failure.at("rank"), 3) << failure;
    EXPECT_EQ(failure.at("node"), nodes ? 1 : 0) << failure;
    EXPECT_EQ(failure.at("op"), "all_reduce") << failure;
    EXPECT_EQ(failure.at("seq"), 6) << failure;
    EXPECT_GE(failure.at("waiting").size(), 1U) << failure;
    std::uint64_t died_at = 0;
    std::ifstream(directory.path("time")) >> died_at;
    EXPECT_LT(now - static_cast<double>(died_at) * 1e-9, end.deadline + 2.0) << run.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeathAcrossNodes,
                         testing::Values(Ending{"kill", "killed", 0}, Ending{"exit3", "exited", 0}, Ending{"stop", "stalled", 2}),
                         [](const auto& test) { return std::string(test.param.how); });

TEST(NoSharedMemory, MismatchesAndDeadlocksAreFoundAcrossNodes) {
  for (const char* what : {"mismatch", "deadlock"}) {
    const TemporaryDirectory directory;
    const Finished run =
        run_program(tsprun_actor({"-n", "2", "--nodes", "2", "--timeout", "2", "--json", directory.path("r")}, {what}));
    EXPECT_NE(run.end.code, 0) << run.describe();
    EXPECT_EQ(read_json(directory.path("r")).at("failure").at("kind"), what) << run.describe();
    EXPECT_LT(run.end.seconds, 6) << run.describe();
  }
}

TEST(NoSharedMemory, ALongComputationOnAnotherNodeIsLife) {
  const Finished run = run_program(tsprun_actor({"-n", "3", "--nodes", "3", "--timeout", "1"}, {"compute", "3"}));
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

TEST(NodeOptions, AreCheckedBeforeRanksStart) {
  const std::vector<std::vector<std::string>> refused = {
      {"-n", "2", "--nodes", "3"},
      {"-n", "2", "--nnodes", "2"},
      {"-n", "2", "--nnodes", "2", "--node-rank", "2", "--rendezvous", "localhost:1"},
      {"-n", "2", "--nnodes", "2", "--node-rank", "0"},
      {"-n", "2", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "nonsense"},
      {"-n", "2", "--node-rank", "0"},
      {"-n", "2", "--inter", "pigeon"},
      {"-n", "2", "--nodes", "2", "--rdma", "nosuch9"},
      {"-n", "2", "--nodes", "2", "--inter", "verbs", "--rdma", "nosuch9"},
      {"-n", "2", "--rdma", "nosuch9:x"},
      {"-n", "2", "--rdma", "nosuch9", "--inter", "tcp"},
      {"-n", "2", "--intra", "pigeon"}};
  for (const std::vector<std::string>& options : refused) {
    const Finished run = run_program(tsprun_actor(options, {"environment"}));
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_EQ(lines_of(run.err).size(), 1U) << run.describe();
  }
}

// --- two tspruns -------------------------------------------------------------------------------------------------------------

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
const ProcessOptions kSecret = with({{"TSP_SECRET", "of this test"}});

TEST(TwoLaunchers, GiveTheBitsOfOne) {
  const Finished shared = digest({"-n", "4"});
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
    Process first(node_words(0, port, {"--timeout", "3", "--json", directory.path("0")}, {"fail", how, "3", "5"}), kSecret);
    Process second(node_words(1, port, {"--timeout", "3", "--json", directory.path("1")}, {"fail", how, "3", "5"}), kSecret);
    EXPECT_NE(first.wait(15).code, 0) << first.err();
    EXPECT_NE(second.wait(15).code, 0) << second.err();
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
  Process second(node_words(1, port, {"--timeout", "2"}, {"digest"}), with({{"TSP_SECRET", "another"}}));
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

TEST(TwoLaunchers, WithUnlikeOptionsSayWhichAndStartNothing) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path("0")) << std::string(3000, 'a');
  std::ofstream(directory.path("1")) << std::string(3000, 'b');
  const int port = free_port();
  const auto train = [&](int node, const std::string& rate) {
    return std::vector<std::string>{tsprun_path(),
                                    "-n",
                                    "2",
                                    "--nnodes",
                                    "2",
                                    "--node-rank",
                                    std::to_string(node),
                                    "--rendezvous",
                                    fmt::format("127.0.0.1:{}", port),
                                    "train",
                                    "--config",
                                    "nano",
                                    "--data",
                                    directory.path(std::to_string(node)),
                                    "--lr",
                                    rate,
                                    "--steps",
                                    "1",
                                    "--seq",
                                    "16"};
  };
  Process first(train(0, "0.1"), kSecret);
  Process second(train(1, "0.2"), kSecret);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(20).code, 2) << process->err();
    EXPECT_NE(process->err().find("--lr 0.2 on node 1, 0.1 on node 0"), std::string::npos) << process->err();
    EXPECT_NE(process->err().find("--data (content "), std::string::npos) << process->err();
    EXPECT_EQ(process->err().find("--steps"), std::string::npos) << process->err();
  }
}

TEST(TwoLaunchers, GoOnTogetherAfterARankWasKilled) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path("text")) << std::string(3000, 'a');
  const int port = free_port();
  const auto train = [&](int node) {
    return std::vector<std::string>{tsprun_path(),
                                    "-n",
                                    "2",
                                    "--nnodes",
                                    "2",
                                    "--node-rank",
                                    std::to_string(node),
                                    "--rendezvous",
                                    fmt::format("127.0.0.1:{}", port),
                                    "--fault",
                                    "kill:rank=1,step=4",
                                    "--json",
                                    directory.path(std::to_string(node)),
                                    "train",
                                    "--config",
                                    "nano",
                                    "--data",
                                    directory.path("text"),
                                    "--steps",
                                    "6",
                                    "--seq",
                                    "16",
                                    "--save",
                                    directory.path("saved"),
                                    "--save-every",
                                    "2",
                                    "--max-restarts",
                                    "1"};
  };
  Process first(train(0), kSecret);
  Process second(train(1), kSecret);
  EXPECT_EQ(first.wait(40).code, 0) << first.err();
  EXPECT_EQ(second.wait(40).code, 0) << second.err();
  for (const char* node : {"0", "1"}) EXPECT_EQ(read_json(directory.path(node)).at("restarts"), 1) << node;
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
}  // namespace tsp::test::nodes_test
