// Ranks of which none waits for another, so that none can tell that one is stopped or spins: the launcher sees it. And what only
// looks like it: programs that sleep, jobs that are stopped as a whole.

#include "tests/support/process.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test::watchdog_test {
namespace {

std::vector<std::string> training(const TextData& data, const std::vector<std::string>& options, const std::string& steps) {
  std::vector<std::string> words = {tsprun_path()};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"train", "--config", "nano", "--data", data.text(), "--seq", "32", "--steps", steps});
  return words;
}

TEST(Watchdog, NamesTheRanksWhenAllAreStopped) {
  const TextData data(3000);
  Process job(training(data, {"-n", "2", "--timeout", "1", "--json", data.path("report")}, "1000000"));
  ASSERT_TRUE(job.wait_for_output("step ")) << job.err();
  for (const pid_t rank : job.marked()) {
    if (rank != job.pid()) ::kill(rank, SIGSTOP);
  }
  EXPECT_EQ(job.wait(15).code, 1) << job.err();
  EXPECT_NE(job.err().find("gave no sign of life until the deadline"), std::string::npos) << job.err();
  for (const char* rank : {"rank 0 is stopped", "rank 1 is stopped"})
    EXPECT_NE(job.err().find(rank), std::string::npos) << job.err();
  EXPECT_EQ(read_json(data.path("report")).at("failure").at("kind"), "stalled");
}

TEST(Watchdog, NamesAStoppedProgramThatNeverJoined) {
  Process job(tsprun_actor({"-n", "2", "--timeout", "1"}, {"sleep"}));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  // Of a rank's processes one is the guardian, which stops for nobody: the program is the one that says ready.
  for (const pid_t process : job.of_rank(1)) ::kill(process, SIGSTOP);
  EXPECT_NE(job.wait(15).code, 0) << job.err();
  EXPECT_NE(job.err().find("rank 1 gave no sign of life"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("rank 1 is stopped"), std::string::npos) << job.err();
}

TEST(Watchdog, LeavesAProgramAloneThatOnlySleeps) {
  const Finished run = run_tsprun({"-n", "2", "--timeout", "0.5", "run", "--", "sleep", "2.5"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

TEST(Watchdog, LeavesAJobAloneThatWasStoppedAsAWhole) {
  const TextData data(3000);
  Process job(training(data, {"-n", "2", "--timeout", "1"}, "150"));
  ASSERT_TRUE(job.wait_for_output("step ")) << job.err();
  job.signal(SIGTSTP);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  job.signal(SIGCONT);
  EXPECT_EQ(job.wait(60).code, 0) << job.err();
}

}  // namespace
}  // namespace tsprun::detail::test::watchdog_test
