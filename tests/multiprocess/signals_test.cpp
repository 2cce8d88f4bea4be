// Signals that come from schedulers and impatient people: to ranks as well as to tsprun, in any order, at any time, whoever reads
// the output or doesn't.

#include "tests/multiprocess/deaths.h"
#include "tests/support/at_once.h"
#include "tests/support/process.h"
#include "tests/support/text_data.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <sys/ptrace.h>
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
  EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
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
    ASSERT_EQ(job.wait().code, 0) << "start " << start << ", pauses in us:" << moments << "\n" << job.err();
  }
}

// As `scancel` does it: one process after the other. tsprun takes the signals for one only if they come within a quarter of a
// second: where this thread was slower, the job tells nothing, and a new one is signalled.
TEST(SignalToAllProcesses, IsAnInterruptionThoughRanksEndFirst) {
  constexpr std::uint64_t kTogether_ns = 150'000'000;
  constexpr int kMostJobs = 10;
  for (int jobs = 1; jobs <= kMostJobs; ++jobs) {
    Process job(tsprun_actor({"-n", "3"}, {"loop"}));
    ASSERT_TRUE(job.wait_for_output("ready", 3)) << job.err();
    const std::vector<pid_t> ranks = ranks_of(job);
    const std::uint64_t begin = posix::now_ns();
    signal_all(ranks, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    job.signal(SIGTERM);
    if (posix::now_ns() - begin > kTogether_ns && jobs < kMostJobs) continue;
    EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
    EXPECT_NE(job.err().find("the job was interrupted by SIGTERM"), std::string::npos) << job.err();
    EXPECT_EQ(job.err().find("was killed"), std::string::npos) << job.err();
    return;
  }
}

// A rank dies, and while tsprun waits for the other one, which is stopped and has to be killed, it is asked to end. A tracer
// holds that rank at its end until then.
TEST(InterruptedJob, IsNotStartedAgain) {
  const TextData data(3000);
  Process job(long_training(data, {"--save", data.path("save"), "--save-every", "1", "--keep", "2", "--max-restarts", "5"}));
  ASSERT_TRUE(job.wait_for_output("saved ")) << job.err();
  const std::vector<pid_t> ranks = ranks_of(job);
  ASSERT_EQ(ranks.size(), 2U);
  const pid_t held = ranks.front();
  const pid_t killed = ranks.back();
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, held, nullptr, PTRACE_O_TRACEEXIT), 0) << std::strerror(errno);
  ::kill(held, SIGSTOP);
  ::kill(killed, SIGKILL);
  EXPECT_TRUE(until(10, [&] { return std::ranges::count(children_of(job.pid()), killed) == 0; })) << job.err();
  job.signal(SIGTERM);
  // Fails while the rank is on its way from one stop to the other.
  EXPECT_TRUE(until(10, [&] { return ::ptrace(PTRACE_DETACH, held, nullptr, nullptr) == 0; })) << std::strerror(errno);
  const End end = job.wait();
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
  ASSERT_TRUE(until(10, [&] { return children_of(process.pid()).empty(); })) << process.err();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  process.signal(SIGTERM);
  std::ifstream read(trace);
  std::string line;
  while (std::getline(read, line)) continue;
  EXPECT_EQ(process.wait().code, 128 + SIGTERM) << process.err();
  const nlohmann::json written = nlohmann::json::parse(std::ifstream(report));
  EXPECT_TRUE(written.at("failure").is_null()) << written;
}

/// The reader of a pipe is there and takes nothing, and the pipe is full before the job begins.
TEST(OutputThatNobodyReads, DoesNotKeepTheFirstSignalFromEndingTheJob) {
  const TextData data(3000);
  struct Case {
    const char* stream;
    bool is_program;
  };
  at_once(std::vector<Case>{{"1", true}, {"1", false}, {"2", true}, {"2", false}}, [&](const Case& each) {
    const auto& [stream, is_program] = each;
    const std::vector<std::string> program = {tsprun_path(), "-n", "2", "run", "--", "sh", "-c", fmt::format("yes >&{}", stream)};
    const std::vector<std::string> command = is_program ? program : long_training(data);
    const TemporaryDirectory folder;
    const std::string script =
        fmt::format("mkfifo {0}; sleep 600 <{0} & timeout 0.2 yes >{0}; exec \"$@\" {1}>{0}", folder.path("pipe"), stream);
    std::vector<std::string> words = {"sh", "-c", script, "sh"};
    words.insert(words.end(), command.begin(), command.end());
    Process job(words);
    std::this_thread::sleep_for(std::chrono::milliseconds(1700));
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(15).code, 128 + SIGTERM) << "stream " << stream << " of " << command[3];
  });
}

}  // namespace
}  // namespace tsprun::detail::test::signals_test
