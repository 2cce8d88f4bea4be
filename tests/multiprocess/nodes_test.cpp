// Ranks that share no memory: on pretended nodes of one machine, and on sockets by choice. Results are those of shared memory,
// bit for bit; deaths are named.

#include "tests/support/at_once.h"
#include "tests/support/process.h"
#include "transport/machine.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::nodes_test {
namespace {

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
                                                {"--intra", "tcp", "--tls", "on"},
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
  ASSERT_EQ(report.at("transports").size(), 4U) << "by ranges of ranks, not by pairs";
  EXPECT_EQ(report.at("transports")[0].at("from_ranks"), "0-2");
  EXPECT_EQ(report.at("transports")[1].at("to_ranks"), "3-4");
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

/// Holds what `bench` of these ranks says of its transports: the head's line, and those of rows by operation.
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
  at_once(std::vector<std::string>{"--nodes", "--intra"}, [&](const std::string& how) {
    const TemporaryDirectory directory;
    const bool nodes = how == "--nodes";
    const PatientWatch watch;
    const Finished run =
        run_program(tsprun_actor({"-n", "4", how, nodes ? "2" : "tcp", "--timeout", "2", "--json", directory.path("r")},
                                 {"fail", end.how, "3", "5", directory.path("time")}));
    const double now = static_cast<double>(posix::now_ns()) * 1e-9;
    const double pace = watch.pace();
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
    EXPECT_LT(pace * (now - static_cast<double>(died_at) * 1e-9), end.deadline + 2.0) << run.describe();
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeathAcrossNodes,
                         testing::Values(Ending{"kill", "killed", 0}, Ending{"exit3", "exited", 0}, Ending{"stop", "stalled", 2}),
                         [](const auto& test) { return std::string(test.param.how); });

TEST(NoSharedMemory, MismatchesAndDeadlocksAreFoundAcrossNodes) {
  at_once(std::vector<std::string>{"mismatch", "deadlock"}, [](const std::string& what) {
    const TemporaryDirectory directory;
    const Finished run =
        run_program(tsprun_actor({"-n", "2", "--nodes", "2", "--timeout", "3", "--json", directory.path("r")}, {what}));
    EXPECT_NE(run.end.code, 0) << run.describe();
    EXPECT_EQ(read_json(directory.path("r")).at("failure").at("kind"), what) << run.describe();
    EXPECT_LT(run.end.seconds, 7) << run.describe();
  });
}

TEST(NoSharedMemory, ALongComputationOnAnotherNodeIsLife) {
  const Finished run = run_program(tsprun_actor({"-n", "3", "--nodes", "3", "--timeout", "1"}, {"compute", "2"}));
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
      {"-n", "2", "--rdma", "nosuch9"},
      {"-n", "2", "--rdma", "nosuch9", "--inter", "tcp"},
      {"-n", "2", "--intra", "pigeon"}};
  for (const std::vector<std::string>& options : refused) {
    const Finished run = run_program(tsprun_actor(options, {"environment"}));
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_EQ(lines_of(run.err).size(), 1U) << run.describe();
  }
}

}  // namespace
}  // namespace tsprun::detail::test::nodes_test
