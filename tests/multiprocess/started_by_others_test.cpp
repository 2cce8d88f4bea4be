// Ranks that no tsprun started: one by one, with the environment of torchrun, Slurm or Open MPI.

#include "tests/support/process.h"
#include "transport/machine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::started_by_others_test {
namespace {

using Environment = std::map<std::string, std::string>;

Environment torchrun(int rank, int size) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29511"},
          {"TORCHELASTIC_RUN_ID", fmt::format("test-{}", ::getpid())}};
}

Environment slurm(int rank, int size) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", std::to_string(rank)},
          {"SLURM_NTASKS", std::to_string(size)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
          {"SLURM_STEP_TASKS_PER_NODE", std::to_string(size)},
          {"SLURM_NODEID", "0"},
          {"SLURM_JOB_ID", std::to_string(::getpid())},
          {"SLURM_STEP_ID", "0"}};
}

Environment open_mpi(int rank, int size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},       {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)}, {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(size)},
          {"PMIX_NAMESPACE", fmt::format("{}", ::getpid())},    {"PMIX_RANK", std::to_string(rank)}};
}

using Starter = Environment (*)(int rank, int size);
using Ranks = std::vector<std::unique_ptr<Process>>;

/// Starts those ranks in that order, a moment apart.
Ranks start(Starter starter, int size, const std::vector<int>& order, const std::vector<std::string>& command,
            const Environment& more = {}) {
  Ranks ranks;
  for (int rank : order) {
    ProcessOptions options;
    options.environment = starter(rank, size);
    options.environment.insert(more.begin(), more.end());
    ranks.push_back(std::make_unique<Process>(command, options));
    ::usleep(30'000);
  }
  return ranks;
}

class StartedBy : public testing::TestWithParam<Starter> {};

TEST_P(StartedBy, RanksFindEachOther) {
  const auto before = shared_names();
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{0, 1, 2, 3}, {3, 1, 2, 0}}) {
    Ranks ranks = start(GetParam(), 4, order, {program_path("actor"), "sum"});
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->wait().code, 0) << rank->err();
      EXPECT_NE(rank->out().find("sum over 4 ranks is right"), std::string::npos) << rank->out();
    }
  }
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

/// Slurm's task/affinity and Open MPI's binding give each rank a core of its own: they have as many as they are.
TEST_P(StartedBy, RanksHaveTheCoresOfAllTheirMasks) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  std::vector<std::size_t> mine;
  for (std::size_t core = 0; core < CPU_SETSIZE && mine.size() < 2; ++core) {
    if (CPU_ISSET(core, &mask)) mine.push_back(core);
  }
  if (mine.size() < 2) GTEST_SKIP() << "one core can't be given to two ranks";
  const int both = std::min(2, detail::machine::usable_cores());  // a cgroup may grant less than their time
  for (const bool own : {true, false}) {
    Ranks ranks;
    for (int rank : {0, 1}) {
      ProcessOptions options;
      options.environment = GetParam()(rank, 2);
      const std::string core = std::to_string(mine[own ? static_cast<std::size_t>(rank) : 0]);
      ranks.push_back(
          std::make_unique<Process>(std::vector<std::string>{"taskset", "-c", core, program_path("actor"), "cores"}, options));
    }
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->wait().code, 0) << rank->err();
      EXPECT_NE(rank->out().find(fmt::format("{} cores for 2 ranks", own ? both : 1)), std::string::npos) << rank->out();
    }
  }
}

TEST_P(StartedBy, AMissingRankIsNamedAtTheDeadline) {
  const auto before = shared_names();
  const PatientWatch watch;
  Ranks ranks = start(GetParam(), 4, {1, 0, 3}, {program_path("actor"), "sum"}, {{"TSP_TIMEOUT", "1.5"}});
  for (const auto& rank : ranks) {
    EXPECT_NE(rank->wait().code, 0);
    EXPECT_NE(rank->err().find("local rank 2"), std::string::npos) << rank->err();
  }
  EXPECT_LT(watch.seconds(), 8);
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

TEST_P(StartedBy, ADeathIsNoticedWithoutALauncher) {
  const auto before = shared_names();
  Ranks ranks = start(GetParam(), 3, {0, 1, 2}, {program_path("actor"), "loop"});
  for (const auto& rank : ranks) ASSERT_TRUE(rank->wait_for_output("ready")) << rank->err();
  [[maybe_unused]] const PatientWatch watch;  // sanitizers have no such limit
  ranks[1]->signal(SIGKILL);
  for (int rank : {0, 2}) {
    Process& process = *ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(process.wait().code, 1) << process.err();
    EXPECT_NE(process.err().find("rank 1 is gone"), std::string::npos) << process.err();
    EXPECT_NE(process.err().find("waits for it in all_reduce #"), std::string::npos) << process.err();
  }
#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)
  EXPECT_LT(watch.seconds(), 1.5);
#endif
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

TEST_P(StartedBy, AStopInABarrierIsNoDeadlock) {
  Ranks ranks = start(GetParam(), 3, {0, 1, 2}, {program_path("actor"), "stop_in_barrier", "1"}, {{"TSP_TIMEOUT", "4"}});
  for (int rank : {0, 2}) {
    Process& process = *ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(process.wait().code, 1) << process.err();
    EXPECT_NE(process.err().find("rank 1 gave no sign of life"), std::string::npos) << process.err();
    EXPECT_NE(process.err().find("rank 1 is stopped, in barrier #2"), std::string::npos) << process.err();
  }
}

/// A program that catches nothing: it ends with the refusal's words, and leaves no core.
TEST(StartedByNobody, AnIncompleteEnvironmentIsRefusedInWords) {
  const std::vector<std::pair<Environment, std::string>> cases = {
      {{{"RANK", "0"}}, "WORLD_SIZE isn't set"},
      {{{"WORLD_SIZE", "2"}}, "RANK isn't set"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}, "RANK=2"},
      {{{"TSP_TIMEOUT", "soon"}}, "TSP_TIMEOUT=soon"},
      {{{"TSP_ALGORITHMS", "nonsense"}}, "nonsense"}};
  for (const auto& [environment, words] : cases) {
    ProcessOptions options;
    options.environment = environment;
    const Finished run = run_program({program_path("actor"), "sum"}, options);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_EQ(run.err.rfind("tsp: ", 0), 0U) << run.describe();
    EXPECT_NE(run.err.find(words), std::string::npos) << run.describe();
    EXPECT_EQ(run.err.find("terminate"), std::string::npos) << run.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(All, StartedBy, testing::Values(torchrun, slurm, open_mpi), [](const auto& test) {
  return test.param == torchrun ? "torchrun" : test.param == slurm ? "slurm" : "open_mpi";
});

TEST(StartedByNobody, AProgramIsAWorldOfOne) {
  const Finished run = run_program({program_path("actor"), "sum"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_NE(run.out.find("sum over 1 ranks is right"), std::string::npos) << run.describe();
}

TEST(StartedWrongly, AProgramSaysWhichVariableIsMissing) {
  ProcessOptions options;
  options.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  const Finished run = run_program({program_path("actor"), "sum"}, options);
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_NE(run.err.find("LOCAL_"), std::string::npos) << run.describe();
}

// --- a /dev/shm of 1 MB ------------------------------------------------------------------------------------------------------

/// The command with a /dev/shm of one megabyte of its own.
std::vector<std::string> with_small_shared_memory(std::vector<std::string> command) {
  std::vector<std::string> words = {"unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec \"$@\"", "sh"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

class SmallSharedMemory : public testing::Test {
 protected:
  void SetUp() override {
    Process probe(with_small_shared_memory({"true"}));
    if (probe.wait().code != 0) GTEST_SKIP() << "a mount namespace of its own needs root: " << probe.err();
  }
};

TEST_F(SmallSharedMemory, IsAnErrorThatNamesItWhenLanesDoNotFit) {
  Ranks ranks = start(torchrun, 6, {0, 1, 2, 3, 4, 5}, with_small_shared_memory({program_path("actor"), "sum"}));
  for (const auto& rank : ranks) {
    EXPECT_NE(rank->wait().code, 0);
    EXPECT_NE(rank->err().find("/dev/shm is too small for the lanes of 6 ranks: "), std::string::npos) << rank->err();
  }
}

TEST_F(SmallSharedMemory, IsAnErrorThatNamesItWhenAHeapDoesNotFit) {
  Ranks ranks = start(torchrun, 2, {0, 1}, with_small_shared_memory({program_path("actor"), "heap", "8"}));
  for (const auto& rank : ranks) EXPECT_NE(rank->wait().code, 0);
  EXPECT_NE((ranks[0]->err() + ranks[1]->err()).find("/dev/shm"), std::string::npos) << ranks[0]->err() << ranks[1]->err();
}

TEST_F(SmallSharedMemory, IsNothingThatTsprunMinds) {
  const Finished run = run_program(with_small_shared_memory(tsprun_actor({"-n", "6"}, {"sum"})));
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const Finished heap = run_program(with_small_shared_memory(tsprun_actor({"-n", "2"}, {"heap", "64"})));
  EXPECT_EQ(heap.end.code, 0) << heap.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::started_by_others_test
