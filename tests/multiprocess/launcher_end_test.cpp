// When tsprun itself is interrupted, killed or stopped: its ranks end with it, or nobody notices, and nothing is left.

#include "tests/multiprocess/deaths.h"
#include "tests/support/process.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::launcher_end_test {
namespace {

class Interruption : public testing::TestWithParam<int> {};

TEST_P(Interruption, EndsTheJobCleanly) {
  for (const char* action : {"loop", "sleep", "children"}) {
    const TemporaryDirectory directory;
    Process process(tsprun_actor({"-n", "3", "--json", directory.path("r")}, {action}));
    ASSERT_TRUE(process.wait_for_output("ready", 3)) << process.err();
    const std::uint64_t start = posix::now_ns();
    process.signal(GetParam());
    EXPECT_EQ(process.wait(10).code, 128 + GetParam()) << action << process.err();
    EXPECT_LT(static_cast<double>(posix::now_ns() - start) * 1e-9, kPromptly + 2) << action;
    EXPECT_TRUE(process.wait_until_nothing_is_left(0.5)) << action;
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), "interrupted") << failure;
  }
}

TEST_P(Interruption, EndsEvenThoseThatIgnoreIt) {
  Process process(tsprun_actor({"-n", "2"}, {"stubborn"}));
  ASSERT_TRUE(process.wait_for_output("ready", 2)) << process.err();
  process.signal(GetParam());
  EXPECT_EQ(process.wait(10).code, 128 + GetParam()) << process.err();
  EXPECT_TRUE(process.wait_until_nothing_is_left(0.5));
}

// The first rank interrupts its launcher, which has many more to fork.
TEST(InterruptedStart, ForksNoMoreRanks) {
  constexpr int kRanks = 300;  // a limit of 1024 open files is enough for them
  const std::string program =
      "[ $RANK = 0 ] && read -r pid name state launcher rest < /proc/$PPID/stat && kill -TERM $launcher; sleep 60";
  const Finished run = run_tsprun({"-n", std::to_string(kRanks), "--log-level", "debug", "run", "--", "sh", "-c", program});
  EXPECT_EQ(run.end.code, 128 + SIGTERM) << run.describe();
  int started = 0;
  for (const std::string& line : lines_of(run.err)) started += line.find(" is process ") != std::string::npos ? 1 : 0;
  EXPECT_GE(started, 1);
  EXPECT_LT(started, kRanks) << "all were started before the signal was seen";
}

INSTANTIATE_TEST_SUITE_P(Signals, Interruption, testing::Values(SIGINT, SIGTERM),
                         [](const auto& test) { return test.param == SIGINT ? "SIGINT" : "SIGTERM"; });

TEST(KilledLauncher, TakesItsRanksAndTheirChildrenWithIt) {
  const auto before = shared_names();
  for (const char* action : {"loop", "sleep", "stubborn", "children"}) {
    Process process(tsprun_actor({"-n", "3"}, {action}));
    ASSERT_TRUE(process.wait_for_output("ready", 3)) << process.err();
    process.signal(SIGKILL);
    process.wait();
    EXPECT_TRUE(process.wait_until_nothing_is_left(2)) << action << " left " << process.marked().size() << " processes";
  }
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

std::string name_of(pid_t pid) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  return name;
}

// As `pkill -9 tsprun` does it: whoever would clean up must not bear that name.
TEST(KilledLauncher, WithAllWhoBearItsNameLeavesNothing) {
  Process process(tsprun_actor({"-n", "3"}, {"children"}));
  ASSERT_TRUE(process.wait_for_output("ready", 3)) << process.err();
  std::vector<pid_t> namesakes;
  for (const pid_t pid : process.marked()) {
    if (name_of(pid) == "tsprun") namesakes.push_back(pid);
  }
  ASSERT_FALSE(namesakes.empty());
  // Stopped first, so that none of them sees another's end.
  for (const pid_t pid : namesakes) ::kill(pid, SIGSTOP);
  for (const pid_t pid : namesakes) ::kill(pid, SIGKILL);
  process.wait();
  EXPECT_TRUE(process.wait_until_nothing_is_left(2)) << process.marked().size() << " processes are left";
}

TEST(KilledLauncher, OfABuiltInCommandTakesItsRanksWithIt) {
  Process process({tsprun_path(), "-n", "3", "bench", "all_reduce", "--sizes", "1M", "--iters", "100000"});
  for (int i = 0; i < 1000 && process.marked().size() < 4; ++i) ::usleep(5000);
  ASSERT_GE(process.marked().size(), 4U) << process.err();
  process.signal(SIGKILL);
  process.wait();
  EXPECT_TRUE(process.wait_until_nothing_is_left(2)) << process.marked().size() << " processes are left";
}

// The others can't know how a rank ended while tsprun is stopped, and give it up at their deadline.
TEST(StoppedLauncher, NamesADeathThatHappenedMeanwhile) {
  for (const bool past_the_deadline : {false, true}) {
    const TemporaryDirectory directory;
    Process process(tsprun_actor({"-n", "3", "--timeout", "1", "--json", directory.path("r")}, {"loop"}));
    ASSERT_TRUE(process.wait_for_output("ready", 3)) << process.err();
    const std::vector<pid_t> ranks = children_of(process.pid());
    ASSERT_EQ(ranks.size(), 3U);
    process.signal(SIGSTOP);
    ::kill(ranks[1], SIGKILL);
    ::usleep(past_the_deadline ? 2'500'000 : 200'000);
    process.signal(SIGCONT);
    EXPECT_EQ(process.wait(10).code, 128 + SIGKILL) << process.err();
    EXPECT_NE(process.err().find("rank 1 was killed by signal 9 (SIGKILL)"), std::string::npos) << process.err();
    EXPECT_TRUE(process.wait_until_nothing_is_left(0.5));
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), "killed") << failure;
    EXPECT_EQ(failure.at("signal"), SIGKILL) << failure;
    EXPECT_EQ(failure.at("rank"), 1) << failure;
    EXPECT_GE(failure.at("waiting").size(), 1U) << failure;
  }
}

TEST(StoppedJob, ContinuesWithoutAFalseAlarm) {
  // Ctrl-Z for longer than the deadline.
  Process process(tsprun_actor({"-n", "3", "--timeout", "1"}, {"loop"}));
  ASSERT_TRUE(process.wait_for_output("ready", 3)) << process.err();
  process.signal(SIGTSTP);
  ::usleep(2'500'000);
  process.signal(SIGCONT);
  ::usleep(1'500'000);
  EXPECT_EQ(process.wait(0.1).ended, false) << process.err();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(10).code, 128 + SIGTERM) << process.err();
}

}  // namespace
}  // namespace tsprun::detail::test::launcher_end_test
