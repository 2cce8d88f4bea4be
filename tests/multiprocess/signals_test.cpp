// Signals that come from schedulers and impatient people: to ranks as well as to tsprun, in any order, at any time, whoever reads
// the output or doesn't.

#include "tests/support/process.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::signals_test {
namespace {

/// All processes of the job but tsprun: of a built-in command the ranks, else guardians and programs.
std::vector<pid_t> ranks_of(const Process& job) {
  std::vector<pid_t> ranks = job.marked();
  std::erase(ranks, job.pid());
  return ranks;
}

void signal_all(const std::vector<pid_t>& processes, int signal) {
  for (const pid_t process : processes) ::kill(process, signal);
}

std::vector<std::string> long_training(const TextData& data, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {tsprun_path(), "-n",        "2",       "train",   "--config", "nano",
                                    "--data",      data.text(), "--steps", "1000000", "--seq",    "32"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(BuiltInRanks, LeaveSignalsToTsprun) {
  const TextData data(3000);
  Process job(long_training(data));
  ASSERT_TRUE(job.wait_for_output("step ")) << job.err();
  const std::vector<pid_t> ranks = ranks_of(job);
  ASSERT_EQ(ranks.size(), 2U);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) signal_all(ranks, signal);
  for (const int signal : {SIGUSR1, SIGUSR2}) job.signal(signal);
  EXPECT_FALSE(job.wait(1).ended) << job.err();
  EXPECT_EQ(ranks_of(job), ranks);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(10).code, 128 + SIGTERM) << job.err();
  EXPECT_NE(job.err().find("the job was interrupted by SIGTERM"), std::string::npos) << job.err();
}

/// The loader says what it does. Before it calls the libraries' constructors, it runs tsprun's very first code; until then, while
/// it maps and relocates libraries, a signal finds nobody who could do anything about it.
TEST(SigUsr1, InTheFirstMillisecondsEndsNoStart) {
  std::mt19937 random(17);
  for (int start = 0; start < 60; ++start) {
    Process job({tsprun_path(), "-n", "2", "run", "--", "sleep", "0.02"}, {.environment = {{"LD_DEBUG", "files"}}});
    for (int look = 0; look < 300'000 && job.err().find("calling init: ") == std::string::npos; ++look)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::string moments;
    for (int signal = 0; signal < 8; ++signal) {
      const auto pause_us = static_cast<int>(random() % (start % 2 == 0 ? 800 : 10'000));
      if (signal > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      job.signal(SIGUSR1);
      moments += fmt::format(" {}", pause_us);
    }
    ASSERT_EQ(job.wait(30).code, 0) << "start " << start << ", pauses in us:" << moments << "\n" << job.err();
  }
}

// As `scancel` does it: one process after the other.
TEST(SignalToAllProcesses, IsAnInterruptionThoughRanksEndFirst) {
  Process job(tsprun_actor({"-n", "3"}, {"loop"}));
  ASSERT_TRUE(job.wait_for_output("ready", 3)) << job.err();
  signal_all(ranks_of(job), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(10).code, 128 + SIGTERM) << job.err();
  EXPECT_NE(job.err().find("the job was interrupted by SIGTERM"), std::string::npos) << job.err();
  EXPECT_EQ(job.err().find("was killed"), std::string::npos) << job.err();
}

// A rank dies, and while tsprun waits for the other one, which is stopped and has to be killed, it is asked to end.
TEST(InterruptedJob, IsNotStartedAgain) {
  const TextData data(3000);
  Process job(long_training(data, {"--save", data.path("save"), "--save-every", "1", "--keep", "2", "--max-restarts", "5"}));
  ASSERT_TRUE(job.wait_for_output("saved ")) << job.err();
  const std::vector<pid_t> ranks = ranks_of(job);
  ASSERT_EQ(ranks.size(), 2U);
  ::kill(ranks.front(), SIGSTOP);
  ::kill(ranks.back(), SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  job.signal(SIGTERM);
  const End end = job.wait(10);
  EXPECT_TRUE(end.ended);
  EXPECT_EQ(job.err().find("restart 1 of"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("no restart: "), std::string::npos) << job.err();
}

/// Opening a FIFO waits for its reader, so that tsprun is writing the trace when the signal comes.
TEST(LateSignal, EndsTsprunWhenItsReportIsWritten) {
  const TemporaryDirectory directory;
  const std::string trace = directory.path("trace");
  const std::string report = directory.path("report.json");
  ASSERT_EQ(::mkfifo(trace.c_str(), 0600), 0);
  Process process(tsprun_actor({"-n", "1", "--trace", trace, "--json", report}, {"sum"}));
  ASSERT_TRUE(process.wait_for_output("is right")) << process.err();
  for (int tries = 0; tries < 1'000 && process.marked().size() > 1; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  process.signal(SIGTERM);
  std::ifstream read(trace);
  std::string line;
  while (std::getline(read, line)) continue;
  EXPECT_EQ(process.wait(20).code, 128 + SIGTERM) << process.err();
  const nlohmann::json written = nlohmann::json::parse(std::ifstream(report));
  EXPECT_TRUE(written.at("failure").is_null()) << written;
}

/// The reader of a pipe is there and takes nothing, and the pipe is full before the job begins.
TEST(OutputThatNobodyReads, DoesNotKeepTheFirstSignalFromEndingTheJob) {
  const TextData data(3000);
  for (const char* stream : {"1", "2"}) {
    const std::vector<std::string> program = {tsprun_path(), "-n", "2", "run", "--", "sh", "-c", fmt::format("yes >&{}", stream)};
    for (const std::vector<std::string>& command : {program, long_training(data)}) {
      const TemporaryDirectory folder;
      const std::string script =
          fmt::format("mkfifo {0}; sleep 60 <{0} & timeout 0.2 yes >{0}; exec \"$@\" {1}>{0}", folder.path("pipe"), stream);
      std::vector<std::string> words = {"sh", "-c", script, "sh"};
      words.insert(words.end(), command.begin(), command.end());
      Process job(words);
      std::this_thread::sleep_for(std::chrono::milliseconds(1700));
      job.signal(SIGTERM);
      EXPECT_EQ(job.wait(15).code, 128 + SIGTERM) << "stream " << stream << " of " << command[3];
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::signals_test
