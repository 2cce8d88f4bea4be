// A SIGKILL at a hundred random moments of a job's life, from the first instant on: each time tsprun says who, ends with the
// signal's code, and leaves nothing.

#include "tests/support/oracle.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::kill_storm_test {
namespace {

constexpr int kRanks = 3;
constexpr int kKills = 25;

/// The processes that a process has started.
std::vector<pid_t> children_of(pid_t pid) {
  const std::string number = std::to_string(pid);
  std::ifstream file("/proc/" + number + "/task/" + number + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

/// A process whose death is that of a rank.
struct Victim {
  int rank;
  pid_t pid;
};
using Victims = std::function<std::vector<Victim>(const Process&)>;

/// tsprun's children are the ranks' processes, in the order of ranks.
std::vector<Victim> rank_processes(const Process& process) {
  std::vector<Victim> found;
  for (const pid_t pid : children_of(process.pid())) found.push_back({static_cast<int>(found.size()), pid});
  return found;
}

/// Kills a victim at kKills random moments of as many jobs, which then end with `code`. `victims` may find none as long as the
/// job is too young.
void storm(const std::vector<std::string>& command, const Victims& victims, int code, std::uint64_t seed) {
  const auto before = shared_names();
  for (std::uint64_t i = 0; i < kKills; ++i) {
    Process process(command);
    // Half of the moments lie in the start-up.
    ::usleep(static_cast<useconds_t>(mix(seed, i) % (i % 2 == 0 ? 30'000 : 250'000)));
    std::vector<Victim> candidates = victims(process);
    for (int tries = 0; candidates.empty() && tries < 2000; ++tries) {
      ::usleep(1000);
      candidates = victims(process);
    }
    ASSERT_FALSE(candidates.empty()) << "no rank ever came up\n" << process.err();
    const Victim victim = candidates[mix(seed, i, 1) % candidates.size()];
    ::kill(victim.pid, SIGKILL);
    const End end = process.wait(10);
    ASSERT_TRUE(end.ended) << "kill " << i << ": tsprun hangs\n" << process.err();
    EXPECT_EQ(end.code, code) << "kill " << i << "\n" << process.err();
    EXPECT_TRUE(process.wait_until_nothing_is_left(0.5))
        << "kill " << i << ": " << process.marked().size() << " processes are left";
    const std::string verdict = "rank " + std::to_string(victim.rank) + " was killed by signal 9";
    EXPECT_NE(process.err().find(verdict), std::string::npos) << "kill " << i << " of rank " << victim.rank << "\n"
                                                              << process.err();
  }
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

const std::string kRanksText = std::to_string(kRanks);
/// `run` passes a rank's own end on; a built-in command's job has failed.
constexpr int kCodeOfRun = 128 + SIGKILL;
constexpr int kCodeOfCommand = 1;

TEST(KillStorm, OnPrograms) {
  const Victims programs = [](const Process& process) {
    std::vector<Victim> found;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const pid_t pid : process.of_rank(rank)) found.push_back({rank, pid});
    }
    return found;
  };
  storm(tsprun_actor({"-n", kRanksText}, {"loop"}), programs, kCodeOfRun, 1);
}

TEST(KillStorm, OnProgramsWithChildren) {
  const Victims programs = [](const Process& process) {
    // The program is its parent's first child; what it forked and left to the parent follows.
    std::vector<Victim> found;
    for (const auto& [rank, parent] : rank_processes(process)) {
      const std::vector<pid_t> below = children_of(parent);
      if (!below.empty()) found.push_back({rank, below.front()});
    }
    return found;
  };
  storm(tsprun_actor({"-n", kRanksText}, {"children"}), programs, kCodeOfRun, 2);
}

TEST(KillStorm, OnTheParentsOfPrograms) { storm(tsprun_actor({"-n", kRanksText}, {"loop"}), rank_processes, kCodeOfRun, 3); }

TEST(KillStorm, OnRanksOfABuiltInCommand) {
  storm({tsprun_path(), "-n", kRanksText, "bench", "all_reduce,all_gather", "--sizes", "8,64K,1M", "--iters", "100000"},
        rank_processes, kCodeOfCommand, 4);
}

}  // namespace
}  // namespace tsprun::detail::test::kill_storm_test
