// The flight board of a running job from outside: SIGUSR1 to tsprun prints to its log what `tsprun status PID` prints.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace tsp::test::board_test {
namespace {

/// What a line of the board says of a rank and doesn't change from one look to the next: its number and process.
std::vector<std::string> ranks_and_pids(const std::string& text) {
  std::vector<std::string> rows;
  for (const std::string& line : lines_of(text)) {
    const std::size_t alive = line.find("  alive");
    if (alive != std::string::npos) rows.push_back(line.substr(0, alive));
  }
  return rows;
}

TEST(Board, SignalUserOnePrintsWhatStatusPrints) {
  Process job(tsprun_actor({"-n", "3"}, {"loop"}));
  ASSERT_TRUE(job.wait_for_output("ready", 3)) << job.err();
  const Finished status = run_tsprun({"status", std::to_string(job.pid())});
  EXPECT_EQ(status.end.code, 0) << status.describe();
  const std::vector<std::string> expected = ranks_and_pids(status.out);
  ASSERT_EQ(expected.size(), 3U) << status.describe();

  for (std::size_t times = 1; times <= 2; ++times) {
    job.signal(SIGUSR1);
    for (int tries = 0; tries < 500 && ranks_and_pids(job.err()).size() < 3 * times; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::vector<std::string> printed = ranks_and_pids(job.err());
    ASSERT_EQ(printed.size(), 3 * times) << job.err();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), printed.end() - 3)) << job.err();
  }
  EXPECT_NE(job.err().find("last sign"), std::string::npos);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(10).code, 128 + SIGTERM) << job.err();
}

TEST(Board, SaysWhichRankIsStopped) {
  Process job(tsprun_actor({"-n", "4"}, {"stop_chain"}));
  std::string seen;
  for (int tries = 0; tries < 100 && seen.find("  stopped") == std::string::npos; ++tries) {
    seen = run_tsprun({"status", std::to_string(job.pid())}).out;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_NE(seen.find("  stopped"), std::string::npos) << seen;
  EXPECT_EQ(ranks_and_pids(seen).size(), 3U) << seen;
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(20).code, 128 + SIGTERM) << job.err();
}

TEST(Board, SaysForWhomRanksWaitThatAreStillConnecting) {
  Process job(tsprun_actor({"-n", "2", "--nodes", "2", "--inter", "tcp"}, {"stop_before_joining", "1"}));
  std::string seen;
  for (int tries = 0; tries < 100 && seen.find("connecting to rank 1") == std::string::npos; ++tries) {
    seen = run_tsprun({"status", std::to_string(job.pid())}).out;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_NE(seen.find("connecting to rank 1"), std::string::npos) << seen;
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(20).code, 128 + SIGTERM) << job.err();
}

}  // namespace
}  // namespace tsp::test::board_test
