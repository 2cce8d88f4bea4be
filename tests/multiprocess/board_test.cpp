// The flight board of a running job from outside: SIGUSR1 to tsprun prints to its log what `tsprun status PID` prints.
#include "tests/support/process.h"
#include "tests/support/terminal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace tsprun::detail::test::board_test {
namespace {

/// Returns what a board's line says of a rank and doesn't change from one look to the next: its number and process.
std::vector<std::string> ranks_and_pids(const std::string& text) {
  std::vector<std::string> rows;
  for (const std::string& line : lines_of(text)) {
    const std::size_t alive = line.find("  alive");
    if (alive != std::string::npos) rows.push_back(line.substr(0, alive));
  }
  return rows;
}

TEST(Board, SignalUserOnePrintsWhatStatusPrints) {
  // With a trace on stdout tsprun holds another memfd, and ranks' lines go to stderr.
  Process job(tsprun_actor({"-n", "3", "--trace", "-"}, {"loop"}));
  const auto ready = [&] {
    const std::vector<std::string> lines = lines_of(job.err());
    return std::count_if(lines.begin(), lines.end(), [](const std::string& line) { return line.ends_with("ready"); });
  };
  for (int tries = 0; tries < 3'000 && ready() < 3; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_EQ(ready(), 3) << job.err();
  const Finished status = run_tsprun({"status", std::to_string(job.pid())});
  EXPECT_EQ(status.end.code, 0) << status.describe();
  const std::vector<std::string> expected = ranks_and_pids(status.out);
  ASSERT_EQ(expected.size(), 3U) << status.describe();

  for (std::size_t times = 1; times <= 2; ++times) {
    job.signal(SIGUSR1);
    for (int tries = 0; tries < 3000 && ranks_and_pids(job.err()).size() < 3 * times; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::vector<std::string> printed = ranks_and_pids(job.err());
    ASSERT_EQ(printed.size(), 3 * times) << job.err();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), printed.end() - 3)) << job.err();
  }
  EXPECT_NE(job.err().find("last sign"), std::string::npos);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
}

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++times;
  return times;
}

/// Returns how many boards took the place of the one before: each goes up by as many lines as that one had, which depends on what
/// the ranks were doing, and clears what is below.
std::size_t boards_in_place(const std::string& shown) {
  const std::string up = "\033[";
  const std::string clear = "F\033[J";
  std::size_t boards = 0;
  std::size_t board = 0;
  for (std::size_t at = shown.find(clear); at != std::string::npos; at = shown.find(clear, at + clear.size()), ++boards) {
    const std::size_t move = shown.rfind(up, at);
    const auto lines =
        std::count(shown.begin() + static_cast<std::ptrdiff_t>(board), shown.begin() + static_cast<std::ptrdiff_t>(move), '\n');
    EXPECT_EQ(shown.substr(move + up.size(), at - move - up.size()), std::to_string(lines)) << shown;
    board = at + clear.size();
  }
  return boards;
}

TEST(Board, StatusFollowsAJobUntilItEnds) {
  Process job(tsprun_actor({"-n", "3"}, {"loop"}));
  ASSERT_TRUE(job.wait_for_output("ready", 3)) << job.err();
  const std::string pid = std::to_string(job.pid());
  Process into_pipe({tsprun_path(), "status", "--follow", pid});
  std::thread end([&] {
    EXPECT_TRUE(into_pipe.wait_for_output("running at", 6)) << into_pipe.out();  // by now the terminal has had some, too
    job.signal(SIGTERM);
  });
  const Shown shown = on_terminal(80, "xterm", {"status", "--follow", pid});
  end.join();
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_GE(boards_in_place(shown.text), 2U) << shown.text;
  EXPECT_EQ(times_in(shown.text, "ended at"), 1U) << shown.text;
  EXPECT_EQ(into_pipe.wait().code, 0) << into_pipe.err();
  EXPECT_GE(times_in(into_pipe.out(), "\n\n3 ranks"), 2U) << into_pipe.out();
  EXPECT_EQ(times_in(into_pipe.out(), "ended at"), 1U) << into_pipe.out();
  EXPECT_EQ(into_pipe.out().find('\033'), std::string::npos) << into_pipe.out();
  EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
}

/// Returns true if a process ignores a signal, as /proc says.
bool ignores(pid_t pid, int number) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigIgn:")) return (std::stoull(line.substr(7), nullptr, 16) >> (number - 1) & 1) != 0;
  }
  return false;
}

TEST(Board, SignalUserOneIsHarmlessWhereThereIsNoJob) {
  // A search takes some tenths of a second, without a job.
  Process plan({tsprun_path(), "plan", "--search", "--gpus", "8", "--mem", "192G", "--machine", "mi300x", "--config", "paper-7b",
                "--dtype", "bf16", "--batch", "8", "--seq", "4096"});
  for (int tries = 0; tries < 3000 && !ignores(plan.pid(), SIGUSR1); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(ignores(plan.pid(), SIGUSR1));
  plan.signal(SIGUSR1);
  EXPECT_EQ(plan.wait().code, 0) << plan.err();
  EXPECT_NE(plan.out().find("tsp="), std::string::npos) << plan.out();
  // Programs under `run` don't inherit that.
  const Finished program = run_tsprun({"run", "--", "grep", "SigIgn", "/proc/self/status"});
  ASSERT_EQ(program.out.find("SigIgn:"), 0U) << program.describe();
  EXPECT_EQ(std::stoull(program.out.substr(7), nullptr, 16) >> (SIGUSR1 - 1) & 1, 0U) << program.out;
}

/// Interrupts a job of which a rank is stopped: one that can't hear of its end is waited for.
void end_soon(const Process& job) {
  for (const pid_t pid : job.marked()) ::kill(pid, SIGCONT);
  job.signal(SIGTERM);
}

TEST(Board, SaysWhichRankIsStopped) {
  Process job(tsprun_actor({"-n", "4"}, {"stop_chain"}));
  std::string seen;
  for (int tries = 0; tries < 1000 && seen.find("  stopped") == std::string::npos; ++tries) {
    seen = run_tsprun({"status", std::to_string(job.pid())}).out;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_NE(seen.find("  stopped"), std::string::npos) << seen;
  EXPECT_EQ(ranks_and_pids(seen).size(), 3U) << seen;
  end_soon(job);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
}

// 0 and 2 wait for 1, 1 for 3, which is stopped.
TEST(Board, TheReportOfStatusNamesEachRanksOperationAndState) {
  Process job(tsprun_actor({"-n", "4", "--timeout", "60"}, {"stop_chain"}));
  const TemporaryDirectory directory;
  const std::string path = directory.path("r");
  nlohmann::json report;
  const auto settled = [&] {
    if (!report.contains("status") || report.at("status")[3].at("life") != "stopped") return false;
    for (const int rank : {0, 1, 2}) {
      const nlohmann::json& activities = report.at("status")[static_cast<std::size_t>(rank)].at("activities");
      if (activities.size() != 1 || activities[0].at("op") != "recv" || activities[0].at("for").is_null()) return false;
    }
    return true;
  };
  for (int tries = 0; tries < 3000 && !settled(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    run_tsprun({"--json", path, "status", std::to_string(job.pid())});
    report = read_json(path);
  }
  ASSERT_TRUE(settled()) << report;
  EXPECT_EQ(report.at("command"), "status");
  EXPECT_TRUE(report.at("failure").is_null()) << report;
  const nlohmann::json& status = report.at("status");
  ASSERT_EQ(status.size(), 4U) << report;
  for (int rank = 0; rank < 4; ++rank) {
    const nlohmann::json& here = status[static_cast<std::size_t>(rank)];
    EXPECT_EQ(here.at("rank"), rank) << here;
    EXPECT_EQ(std::vector<pid_t>{here.at("pid").get<pid_t>()}, job.of_rank(rank)) << here;
    if (rank == 3) {
      EXPECT_TRUE(here.at("activities").empty()) << here;
      continue;
    }
    EXPECT_EQ(here.at("life"), "alive") << here;
    EXPECT_GE(here.at("seconds_since_sign"), 0) << here;  // who waits gives signs
    const nlohmann::json& activity = here.at("activities").at(0);
    EXPECT_EQ(activity.at("seq"), 1) << here;
    EXPECT_EQ(activity.at("bytes"), sizeof(float)) << here;
    EXPECT_EQ(activity.at("for"), rank == 1 ? 3 : 1) << here;
    EXPECT_EQ(activity.at("stream"), "control") << here;
  }
  end_soon(job);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
}

TEST(Board, ShowsTheStepItsLossAndTheMemoryOfATraining) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path("text")) << std::string(200, 'a') << std::string(200, 'b');
  Process job({tsprun_path(), "-n", "2", "train", "--config", "nano", "--data", directory.path("text"), "--seq", "32", "--steps",
               "1000000"});
  nlohmann::json ranks;
  std::string printed;
  const auto has_no_loss = [](const nlohmann::json& rank) { return rank.at("loss").is_null(); };
  // The table is printed before the report is made of the board: a first loss may come in between.
  const auto shows_all = [&] {
    return !ranks.empty() && std::ranges::none_of(ranks, has_no_loss) && printed.find(", loss ") != std::string::npos;
  };
  for (int tries = 0; tries < 3000 && !shows_all(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    printed = run_tsprun({"--json", directory.path("r"), "status", std::to_string(job.pid())}).out;
    const nlohmann::json report = read_json(directory.path("r"));
    if (report.contains("status")) ranks = report.at("status");
  }
  ASSERT_EQ(ranks.size(), 2U) << printed;
  for (const nlohmann::json& rank : ranks) {
    EXPECT_GE(rank.at("step"), 1) << rank;
    EXPECT_EQ(rank.at("steps"), 1'000'000) << rank;
    EXPECT_GT(rank.at("loss"), 0) << rank;
    EXPECT_LT(rank.at("loss"), 6) << rank;                // ln 256 at first
    EXPECT_GT(rank.at("memory_bytes"), 1 << 16) << rank;  // weights alone
    EXPECT_GE(rank.at("memory_peak_bytes"), rank.at("memory_bytes")) << rank;
  }
  EXPECT_TRUE(printed.starts_with("2 ranks, deadline of waits 30 s\nstep ")) << printed;
  EXPECT_NE(printed.find(" of 1000000, loss "), std::string::npos) << printed;
  EXPECT_NE(printed.find(" MiB"), std::string::npos) << printed;
  end_soon(job);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
}

TEST(Board, SaysForWhomRanksWaitThatAreStillConnecting) {
  Process job(tsprun_actor({"-n", "2", "--nodes", "2", "--inter", "tcp"}, {"stop_before_joining", "1"}));
  std::string seen;
  for (int tries = 0; tries < 1000 && seen.find("connecting to rank 1") == std::string::npos; ++tries) {
    seen = run_tsprun({"status", std::to_string(job.pid())}).out;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_NE(seen.find("connecting to rank 1"), std::string::npos) << seen;
  end_soon(job);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
}

}  // namespace
}  // namespace tsprun::detail::test::board_test
