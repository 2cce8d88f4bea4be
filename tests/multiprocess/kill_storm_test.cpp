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

namespace tsp::test::kill_storm_test {
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

/// Kills a victim at kKills random moments of as many jobs. `victims` may find none as long as the job is too young.
void storm(const std::vector<std::string>& command, const std::function<std::vector<pid_t>(const Process&)>& victims,
           std::uint64_t seed) {
  const auto before = shared_names();
  for (std::uint64_t i = 0; i < kKills; ++i) {
    Process process(command);
    // Half of the moments lie in the start-up.
    ::usleep(static_cast<useconds_t>(mix(seed, i) % (i % 2 == 0 ? 30'000 : 250'000)));
    std::vector<pid_t> candidates = victims(process);
    for (int tries = 0; candidates.empty() && tries < 2000; ++tries) {
      ::usleep(1000);
      candidates = victims(process);
    }
    ASSERT_FALSE(candidates.empty()) << "no rank ever came up\n" << process.err();
    ::kill(candidates[mix(seed, i, 1) % candidates.size()], SIGKILL);
    const End end = process.wait(10);
    ASSERT_TRUE(end.ended) << "kill " << i << ": tsprun hangs\n" << process.err();
    EXPECT_EQ(end.code, 128 + SIGKILL) << "kill " << i << "\n" << process.err();
    EXPECT_TRUE(process.wait_until_nothing_is_left(0.5))
        << "kill " << i << ": " << process.marked().size() << " processes are left";
    EXPECT_NE(process.err().find("was killed by signal 9"), std::string::npos) << "kill " << i << "\n" << process.err();
  }
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

TEST(KillStorm, OnPrograms) {
  storm(
      tsprun_actor({"-n", std::to_string(kRanks)}, {"loop"}),
      [](const Process& process) {
        std::vector<pid_t> found;
        for (int rank = 0; rank < kRanks; ++rank) {
          for (pid_t pid : process.of_rank(rank)) found.push_back(pid);
        }
        return found;
      },
      1);
}

TEST(KillStorm, OnProgramsWithChildren) {
  storm(
      tsprun_actor({"-n", std::to_string(kRanks)}, {"children"}),
      [](const Process& process) {
        // The program is its parent's first child; what it forked and left to the parent follows.
        std::vector<pid_t> found;
        for (pid_t rank : children_of(process.pid())) {
          const std::vector<pid_t> below = children_of(rank);
          if (!below.empty()) found.push_back(below.front());
        }
        return found;
      },
      2);
}

TEST(KillStorm, OnTheParentsOfPrograms) {
  storm(
      tsprun_actor({"-n", std::to_string(kRanks)}, {"loop"}), [](const Process& process) { return children_of(process.pid()); },
      3);
}

TEST(KillStorm, OnRanksOfABuiltInCommand) {
  const auto before = shared_names();
  for (std::uint64_t i = 0; i < kKills; ++i) {
    Process process({tsprun_path(), "-n", std::to_string(kRanks), "bench", "all_reduce,all_gather", "--sizes", "8,64K,1M",
                     "--iters", "100000"});
    ::usleep(static_cast<useconds_t>(mix(4, i) % (i % 2 == 0 ? 30'000 : 250'000)));
    std::vector<pid_t> ranks = children_of(process.pid());
    for (int tries = 0; ranks.empty() && tries < 2000; ++tries) {
      ::usleep(1000);
      ranks = children_of(process.pid());
    }
    ASSERT_FALSE(ranks.empty()) << process.err();
    ::kill(ranks[mix(4, i, 1) % ranks.size()], SIGKILL);
    const End end = process.wait(10);
    ASSERT_TRUE(end.ended) << "kill " << i << ": tsprun hangs\n" << process.err();
    // A built-in command's job failed; only `run` passes a rank's own end on.
    EXPECT_EQ(end.code, 1) << "kill " << i << "\n" << process.err();
    EXPECT_TRUE(process.wait_until_nothing_is_left(0.5)) << "kill " << i;
    EXPECT_NE(process.err().find("was killed by signal 9"), std::string::npos) << "kill " << i << "\n" << process.err();
  }
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

}  // namespace
}  // namespace tsp::test::kill_storm_test
