// Ranks of which none waits for another, so that none can tell that one is stopped or spins: the launcher sees it. And what only
// looks like it: programs that sleep, jobs that are stopped as a whole.

#include "tests/support/process.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
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

// Sanitizers keep books in memory of their own, and such a limit would end them first.
#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)
TEST(OpenBlas, WithoutRoomForItsBuffersIsRefusedBeforeRanksStart) {
  const TextData data(3000);
  std::vector<std::string> words = {"sh", "-c", "ulimit -d 60000; exec \"$@\"", "sh"};
  const std::vector<std::string> tsprun = training(data, {"-n", "2", "--timeout", "3"}, "2");
  words.insert(words.end(), tsprun.begin(), tsprun.end());
  const Finished run = run_program(words);
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("OpenBLAS"), std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("ulimit -d"), std::string::npos) << run.describe();
}
#endif

TEST(OpenBlas, ThatIsMissingIsRefusedBeforeRanksStart) {
  const TextData data(3000);
  // A folder that is searched first holds a file by its name that is no library.
  const TemporaryDirectory folder;
  std::ofstream(folder.path("libopenblas.so.0")) << "nothing";
  const Finished run = run_program(training(data, {"-n", "2"}, "2"), {.environment = {{"LD_LIBRARY_PATH", folder.path("")}}});
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("OpenBLAS doesn't work here: can't load OpenBLAS"), std::string::npos) << run.describe();
  const Finished doctor = run_tsprun({"doctor"}, {.environment = {{"LD_LIBRARY_PATH", folder.path("")}}});
  EXPECT_EQ(doctor.end.code, 1) << doctor.describe();
  EXPECT_NE(doctor.out.find("can't load OpenBLAS"), std::string::npos) << doctor.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::watchdog_test
