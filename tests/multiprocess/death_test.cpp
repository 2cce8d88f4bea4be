// When a rank dies, stalls or ranks deadlock: all others end at once, the last words say who, how, where and who waited, the
// report holds the same, and nothing is left.

#include "tests/multiprocess/deaths.h"
#include "tests/support/at_once.h"
#include "tests/support/process.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <sys/ptrace.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::death_test {
namespace {

using Words = std::vector<std::string>;

const std::vector<Words> kWays = {{}, {"--nodes", "2", "--inter", "tcp"}};

struct Death {
  const char* how;       ///< as the actor takes it
  const char* kind;      ///< in the report
  const char* headline;  ///< in the verdict, between the rank and where it happened
  int signal;            ///< in the report; 0: null
  int code;              ///< tsprun's; -1: any but 0
  double deadline;       ///< seconds until it can be noticed
};

/// Returns the rank for which `rank` waited in an operation, as the verdict says; -1: it was in the operation and didn't wait.
/// Nothing: the verdict says neither.
std::optional<int> waited_for(const std::string& verdict, int rank, const std::string& operation) {
  const std::string here = fmt::format("tsprun:   rank {} ", rank);
  const std::string waited = here + "waited for rank ";
  for (const std::string& line : lines_of(verdict)) {
    if (line.starts_with(fmt::format("{}was in {} (", here, operation))) return -1;
    if (line.starts_with(waited) && line.find(fmt::format(" in {} (", operation)) != std::string::npos)
      return std::stoi(line.substr(waited.size()));
  }
  return std::nullopt;
}

class DeathInOperation : public testing::TestWithParam<Death> {};

TEST_P(DeathInOperation, IsReportedByAllMeansAndEndsTheJob) {
  const Death& death = GetParam();
  const TemporaryDirectory directory;
  const std::string report_path = directory.path("report.json");
  const std::string time_path = directory.path("time");
  const PatientWatch watch;
  const Finished run =
      run_program(tsprun_actor({"-n", "4", "--timeout", "2", "--json", report_path}, {"fail", death.how, "2", "5", time_path}));
  const double end = static_cast<double>(run.end.at_ns) * 1e-9;
  const double pace = watch.pace();

  // Who, how, where, and what others waited for.
  if (death.code >= 0) {
    EXPECT_EQ(run.end.code, death.code) << run.describe();
  } else {
    EXPECT_NE(run.end.code, 0) << run.describe();
  }
  EXPECT_NE(run.err.find(fmt::format("tsprun: rank 2 {} in all_reduce #6\n", death.headline)), std::string::npos)
      << run.describe();
  if (std::string(death.how) == "throw") {
    EXPECT_NE(run.err.find("the actor was told to throw"), std::string::npos) << run.describe();
  }

  const nlohmann::json report = read_json(report_path);
  ASSERT_TRUE(report.is_object() && report.at("failure").is_object()) << run.describe();
  const nlohmann::json& failure = report.at("failure");
  EXPECT_EQ(failure.at("kind"), death.kind) << failure;
  EXPECT_EQ(failure.at("rank"), 2) << failure;
  EXPECT_EQ(failure.at("node"), 0) << failure;
  EXPECT_EQ(failure.at("op"), "all_reduce") << failure;
  EXPECT_EQ(failure.at("seq"), 6) << failure;
  EXPECT_NE(failure.at("detail"), "") << failure;  // what the other ranks throw
  if (death.signal != 0) {
    EXPECT_EQ(failure.at("signal"), death.signal) << failure;
  }
  // All others were in the same operation; at least one waited for the dead one itself. Verdict and report say the same.
  std::map<int, int> waited;  // by rank
  for (const int rank : {0, 1, 3}) {
    const std::optional<int> other = waited_for(run.err, rank, "all_reduce #6");
    ASSERT_TRUE(other) << "rank " << rank << run.describe();
    if (*other >= 0) waited[rank] = *other;
  }
  EXPECT_TRUE(std::ranges::any_of(waited, [](const auto& each) { return each.second == 2; })) << run.describe();
  std::map<int, int> reported;
  for (const nlohmann::json& waiting : failure.at("waiting")) {
    EXPECT_EQ(waiting.at("op"), "all_reduce") << failure;
    EXPECT_EQ(waiting.at("seq"), 6) << failure;
    reported[waiting.at("rank")] = waiting.at("for");
  }
  EXPECT_EQ(reported, waited) << failure << run.describe();

  std::uint64_t died_at = 0;
  std::ifstream(time_path) >> died_at;
  ASSERT_NE(died_at, 0U);
  EXPECT_LT(pace * (end - static_cast<double>(died_at) * 1e-9), death.deadline + kPromptly + 0.6) << run.describe();
}

INSTANTIATE_TEST_SUITE_P(All, DeathInOperation,
                         testing::Values(Death{"kill", "killed", "was killed by signal 9 (SIGKILL)", SIGKILL, 128 + SIGKILL, 0},
                                         Death{"segv", "killed", "was killed by signal 11 (SIGSEGV)", SIGSEGV, 128 + SIGSEGV, 0},
                                         Death{"exit3", "exited", "exited with code 3", 0, 3, 0},
                                         Death{"quick_exit0", "exited", "exited (code 0) before the job was done", 0, -1, 0},
                                         Death{"throw", "exception", "ended by an exception", 0, -1, 0},
                                         Death{"abort", "killed", "was killed by signal 6 (SIGABRT)", SIGABRT, 128 + SIGABRT, 0},
                                         Death{"stop", "stalled", "gave no sign of life until the deadline", 0, -1, 2}),
                         [](const auto& test) { return std::string(test.param.how); });

TEST(DeathOutsideOfOperations, IsReportedWithoutAnOperation) {
  for (const char* how : {"kill", "exit3", "quick_exit0"}) {
    const TemporaryDirectory directory;
    const Finished run = run_program(tsprun_actor({"-n", "3", "--json", directory.path("r")}, {"fail_outside", how, "1"}));
    EXPECT_NE(run.end.code, 0) << run.describe();
    EXPECT_LT(run.end.seconds, 5) << run.describe();
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("rank"), 1) << failure;
    EXPECT_TRUE(failure.at("op").is_null()) << failure;
    EXPECT_TRUE(failure.at("seq").is_null()) << failure;
    ASSERT_GE(failure.at("waiting").size(), 1U) << failure;
    EXPECT_EQ(failure.at("waiting").at(0).at("op"), "barrier") << failure;
  }
}

// What the others do in the meantime is theirs: it stands in `waiting`, and in the text.
TEST(StallOutsideOfOperations, IsReportedWithoutAnOperation) {
  at_once(kWays, [](const Words& way) {
    const TemporaryDirectory directory;
    std::vector<std::string> options = {"-n", "3", "--timeout", "1", "--json", directory.path("r")};
    options.insert(options.end(), way.begin(), way.end());
    const Finished run = run_program(tsprun_actor(options, {"fail_outside", "stop", "1"}));
    EXPECT_NE(run.end.code, 0) << run.describe();
    EXPECT_NE(run.err.find("rank 0 waited for rank 1 in barrier #1"), std::string::npos) << run.describe();
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), "stalled") << failure;
    EXPECT_EQ(failure.at("rank"), 1) << failure;
    EXPECT_TRUE(failure.at("op").is_null()) << failure;
    EXPECT_TRUE(failure.at("seq").is_null()) << failure;
    ASSERT_EQ(failure.at("waiting").size(), 2U) << failure;
    EXPECT_EQ(failure.at("waiting").at(0).at("op"), "barrier") << failure;
    EXPECT_EQ(failure.at("waiting").at(0).at("seq"), 1) << failure;
  });
}

TEST(DeathOutsideOfOperations, SaysWhoComputedMeanwhile) {
  const TemporaryDirectory directory;
  const Finished run = run_program(tsprun_actor({"-n", "4", "--json", directory.path("r")}, {"fail_outside", "kill", "1", "2"}));
  EXPECT_EQ(run.end.code, 128 + SIGKILL) << run.describe();
  EXPECT_NE(run.err.find("rank 1 was killed by signal 9 (SIGKILL), outside an operation\n"), std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("rank 2: computing (outside an operation)\n"), std::string::npos) << run.describe();
  const nlohmann::json failure = read_json(directory.path("r")).at("failure");
  EXPECT_EQ(failure.at("waiting").size(), 2U) << failure;
}

// Its context was closed in good order, as an interpreter does at its end: the process's own end is what happened.
TEST(DeathAfterAClosedContext, IsToldByHowTheProcessEnded) {
  for (const std::vector<std::string>& way : {std::vector<std::string>{}, {"--nodes", "2", "--inter", "tcp"}}) {
    for (const int code : {3, 0}) {
      const TemporaryDirectory directory;
      std::vector<std::string> options = {"-n", "3", "--json", directory.path("r")};
      options.insert(options.end(), way.begin(), way.end());
      const Finished run = run_program(tsprun_actor(options, {"leave_badly", "1", std::to_string(code)}));
      const nlohmann::json failure = read_json(directory.path("r")).at("failure");
      EXPECT_EQ(failure.at("kind"), "exited") << failure;
      EXPECT_EQ(failure.at("rank"), 1) << failure;
      EXPECT_EQ(failure.at("exit_code"), code) << failure;
      const std::string words = code == 0 ? "rank 1 exited (code 0) before the job was done" : "rank 1 exited with code 3";
      EXPECT_NE(run.err.find(words), std::string::npos) << run.describe();
      if (code != 0) {
        EXPECT_EQ(run.end.code, code) << run.describe();
        EXPECT_EQ(run.err.find("in good order"), std::string::npos) << run.describe();
      }
    }
  }
}

TEST(Deadlock, IsNamedAtTheDeadline) {
  const TemporaryDirectory directory;
  const std::uint64_t begin = posix::now_ns();
  const Finished run = run_program(tsprun_actor({"-n", "4", "--timeout", "3", "--json", directory.path("r")}, {"deadlock"}));
  EXPECT_EQ(run.end.code == 0, false) << run.describe();
  EXPECT_GT(posix::now_ns() - begin, 2'900'000'000U) << run.describe();
  EXPECT_LT(run.end.seconds, 8) << run.describe();
  EXPECT_NE(run.err.find("circle"), std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("recv"), std::string::npos) << run.describe();
  const nlohmann::json failure = read_json(directory.path("r")).at("failure");
  EXPECT_EQ(failure.at("kind"), "deadlock") << failure;
  EXPECT_EQ(failure.at("op"), "recv") << failure;
  EXPECT_EQ(failure.at("seq"), 1) << failure;
  // Who is in the circle, and who only waits for it.
  int waits_for[4] = {-1, -1, -1, -1};
  for (const nlohmann::json& waiting : failure.at("waiting"))
    waits_for[waiting.at("rank").get<std::size_t>()] = waiting.at("for");
  EXPECT_EQ(waits_for[0], 1) << failure;
  EXPECT_EQ(waits_for[1], 0) << failure;
}

// 0 and 2 wait for 1, 1 for 3, which is stopped: the verdict names the root, and how all came to wait for it.
TEST(Stall, IsFollowedToTheRootOfTheWaits) {
  const TemporaryDirectory directory;
  const Finished run = run_program(tsprun_actor({"-n", "4", "--timeout", "1", "--json", directory.path("r")}, {"stop_chain"}));
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_NE(run.err.find("ranks 0, 2 wait for 1; rank 1 waits for 3; rank 3 is stopped"), std::string::npos) << run.describe();
  const nlohmann::json failure = read_json(directory.path("r")).at("failure");
  EXPECT_EQ(failure.at("kind"), "stalled") << failure;
  EXPECT_EQ(failure.at("rank"), 3) << failure;
}

// Each rank waits for another, the stopped one too: no deadlock, for all would go on if it did.
TEST(Stall, OfARankThatWaitsItselfIsNoDeadlock) {
  at_once(kWays, [](const Words& way) {
    const TemporaryDirectory directory;
    std::vector<std::string> options = {"-n", "4", "--timeout", "1", "--json", directory.path("r")};
    options.insert(options.end(), way.begin(), way.end());
    const Finished run = run_program(tsprun_actor(options, {"stop_in_barrier", "2"}));
    EXPECT_NE(run.end.code, 0) << run.describe();
    EXPECT_NE(run.err.find("ranks 0, 1, 3 wait for 2; rank 2 is stopped\n"), std::string::npos) << run.describe();
    for (const char* wrong : {"circle", "lost"}) EXPECT_EQ(run.err.find(wrong), std::string::npos) << run.describe();
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), "stalled") << failure;
    EXPECT_EQ(failure.at("rank"), 2) << failure;
    EXPECT_EQ(failure.at("op"), "barrier") << failure;
    EXPECT_EQ(failure.at("waiting").size(), 3U) << failure;
  });
}

// Those that connect wait for each other, and some of them for the stopped one: it is to blame, whoever's deadline passes first.
// Only the rank that shares memory with it has all the connections it needs, and begins to work.
TEST(Stall, WhileRanksConnectNamesTheStoppedRank) {
  struct Case {
    Words way;
    int rank;
  };
  const Words on_one_node = {"--intra", "tcp"};
  const Words on_two_nodes = {"--nodes", "2", "--inter", "tcp"};
  const std::vector<Case> cases = {{on_one_node, 1}, {on_one_node, 3}, {on_two_nodes, 1}, {on_two_nodes, 3}};
  at_once(cases, [&](const Case& each) {
    const auto& [way, rank] = each;
    const TemporaryDirectory directory;
    std::vector<std::string> options = {"-n", "4", "--timeout", "1", "--json", directory.path("r")};
    options.insert(options.end(), way.begin(), way.end());
    const Finished run = run_program(tsprun_actor(options, {"stop_before_joining", std::to_string(rank)}));
    EXPECT_NE(run.end.code, 0) << run.describe();
    EXPECT_LT(run.end.seconds, 3 + kPromptly) << run.describe();
    EXPECT_NE(run.err.find(fmt::format("tsprun: rank {} gave no sign of life", rank)), std::string::npos) << run.describe();
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), "stalled") << failure;
    EXPECT_EQ(failure.at("rank"), rank) << failure;
    EXPECT_TRUE(failure.at("op").is_null()) << failure;
    ASSERT_GE(failure.at("waiting").size(), 1U) << failure << run.describe();
    for (const nlohmann::json& waiting : failure.at("waiting")) {
      const bool shares_memory = way == on_two_nodes && waiting.at("rank") == rank - 1;
      EXPECT_TRUE(waiting.at("op").is_null() || shares_memory) << failure;
    }
  });
}

// At whatever moment of its first milliseconds a rank is stopped: before it joins, while ranks connect, in an operation.
TEST(Stall, FromTheBeginningOnNamesTheStoppedRank) {
  static constexpr int kRank = 2;
  at_once(std::vector{0, 5, 15, 30}, [](int moment_ms) {
    const TemporaryDirectory directory;
    Process job({tsprun_path(), "-n", "4", "--nodes", "2", "--inter", "tcp", "--timeout", "1", "--json", directory.path("r"),
                 "bench", "all_reduce", "--sizes", "1K", "--iters", "1000000"});
    for (int tries = 0; tries < 150'000 && children_of(job.pid()).size() < 4; ++tries) ::usleep(200);
    const std::vector<pid_t> ranks = children_of(job.pid());
    ASSERT_EQ(ranks.size(), 4U) << job.err();
    ::usleep(static_cast<useconds_t>(moment_ms) * 1000);
    ::kill(ranks[kRank], SIGSTOP);
    EXPECT_EQ(job.wait().code, 1) << job.err();
    EXPECT_NE(job.err().find("rank 2 is stopped"), std::string::npos) << job.err();
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), "stalled") << moment_ms << failure << job.err();
    EXPECT_EQ(failure.at("rank"), kRank) << moment_ms << failure << job.err();
  });
}

TEST(Mismatch, IsNamedWithBothSides) {
  const TemporaryDirectory directory;
  const Finished run = run_program(tsprun_actor({"-n", "3", "--json", directory.path("r")}, {"mismatch"}));
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_LT(run.end.seconds, 10) << run.describe();
  EXPECT_NE(run.err.find("all_gather"), std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("all_reduce"), std::string::npos) << run.describe();
  const nlohmann::json failure = read_json(directory.path("r")).at("failure");
  EXPECT_EQ(failure.at("kind"), "mismatch");
  EXPECT_GE(failure.at("waiting").size(), 1U) << failure;
}

TEST(OutOfMemory, NamesTheBufferAndTheBudget) {
  const TemporaryDirectory directory;
  const Finished run =
      run_program(tsprun_actor({"-n", "2", "--mem-per-rank", "16M", "--json", directory.path("r")}, {"heap", "64"}));
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_NE(run.err.find("what the actor asked for"), std::string::npos) << run.describe();
  EXPECT_EQ(read_json(directory.path("r")).at("failure").at("kind"), "out_of_memory");
}

// The kernel may hold a killed process, for a device that doesn't answer. Here a tracer holds it at its end.
TEST(KilledRank, ThatTheKernelHoldsIsLeftBehind) {
  Process process({tsprun_path(), "-n", "3", "bench", "all_reduce", "--sizes", "1M", "--iters", "100000"});
  for (int i = 0; i < 1000 && process.marked().size() < 4; ++i) ::usleep(5000);
  std::vector<pid_t> ranks = process.marked();
  std::erase(ranks, process.pid());
  ASSERT_EQ(ranks.size(), 3U) << process.err();
  const pid_t held = ranks[0];
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, held, nullptr, PTRACE_O_TRACEEXIT), 0) << std::strerror(errno);
  ::kill(ranks[1], SIGKILL);
  const End end = process.wait();
  EXPECT_EQ(end.code, 1) << process.err();
  EXPECT_LT(end.seconds, 15) << process.err();
  EXPECT_NE(process.err().find("was killed by signal 9"), std::string::npos) << process.err();
  const std::string line = fmt::format("(process {}) was killed, but the kernel still holds it", held);
  EXPECT_NE(process.err().find(line), std::string::npos) << process.err();
  ::ptrace(PTRACE_CONT, held, nullptr, nullptr);
  EXPECT_TRUE(process.wait_until_nothing_is_left(2)) << process.marked().size() << " processes are left";
}

}  // namespace
}  // namespace tsprun::detail::test::death_test
