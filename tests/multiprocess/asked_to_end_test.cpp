// What tsprun does when it is asked to end, or to save: one request may be made by several signals, all of them are equal, and
// programs and trainings have time for it.

#include "tests/multiprocess/two_launchers.h"
#include "tests/support/process.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test::asked_to_end_test {
namespace {

using Words = std::vector<std::string>;

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void pause_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

Words training(const TextData& data, const Words& more) {
  Words words = {tsprun_path(), "train",  "-n",        "2",       "--config", "nano",   "--seq",
                 "16",          "--data", data.text(), "--steps", "1000000",  "--save", data.path("runs")};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Two ranks that run a line of shell; `options`: of `run`.
Words shells(const std::string& line, const Words& options = {}) {
  Words words = {tsprun_path(), "-n", "2", "run"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", line});
  return words;
}

/// A rank that saves for three seconds when it gets a signal, and says which and how often.
constexpr const char* kSaves =
    "times=0; for signal in INT TERM HUP QUIT; do trap \"times=\\$((times + 1)); name=$signal\" $signal; done; echo ready; "
    "while [ $times = 0 ]; do sleep 0.05; done; sleep 3; echo saved on $name, $times in all";

// --- one request ---------------------------------------------------------------------------------------------------------------

// As slurmstepd and srun send them at a time limit, and as systemd does it.
TEST(SignalsThatComeTogether, AreOneRequestAndTheTrainingSaves) {
  for (const int second : {SIGTERM, SIGHUP}) {
    const TextData data(2000);
    Process job(training(data, {}));
    ASSERT_TRUE(job.wait_for_output("loss")) << job.err();
    job.signal(SIGTERM);
    pause_ms(30);
    job.signal(second);
    EXPECT_EQ(job.wait(30).code, 128 + SIGTERM) << job.err();
    EXPECT_TRUE(holds(job.err(), "it goes on with: tsprun train")) << job.err();
    EXPECT_FALSE(holds(job.err(), "nothing was saved")) << job.err();
  }
}

// Ranks end at once, and tsprun with them: what still comes finds it writing its report, or gone.
TEST(SignalsThatComeTogether, SpoilNoVerdict) {
  for (int round = 0; round < 5; ++round) {
    Process job(shells("echo ready; exec sleep 20"));
    ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
    for (int signal = 0; signal < 20; ++signal) {
      job.signal(SIGTERM);
      pause_ms(2);
    }
    EXPECT_EQ(job.wait(30).code, 128 + SIGTERM) << job.err();
    EXPECT_TRUE(holds(job.err(), "the job was interrupted by SIGTERM")) << job.err();
  }
}

// --- all that ask to end are equal ---------------------------------------------------------------------------------------------

TEST(AHangUp, LetsATrainingSave) {
  for (const int signal : {SIGHUP, SIGQUIT}) {
    const TextData data(2000);
    Process job(training(data, {}));
    ASSERT_TRUE(job.wait_for_output("loss")) << job.err();
    job.signal(signal);
    EXPECT_EQ(job.wait(30).code, 128 + signal) << job.err();
    EXPECT_TRUE(holds(job.err(), "it goes on with: tsprun train")) << job.err();
  }
}

// `tsprun train … | head`: the reader of the steps leaves, and the run is worth no less.
TEST(OutputThatIsGone, LetsATrainingSave) {
  const TextData data(2000);
  Words words = {"bash", "-c", "\"$@\" | head -n 1; exit ${PIPESTATUS[0]}", "bash"};
  for (const std::string& word : training(data, {})) words.push_back(word);
  Process job(words);
  EXPECT_EQ(job.wait(30).code, 128 + SIGPIPE) << job.err();
  EXPECT_TRUE(holds(job.err(), "it goes on with: tsprun train")) << job.err();
}

// --- time for programs ---------------------------------------------------------------------------------------------------------

TEST(AProgram, HasTimeToSaveAfterOneSignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process job(shells(kSaves));
    ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
    job.signal(signal);
    EXPECT_EQ(job.wait(30).code, 128 + signal) << job.err();
    const std::string name = signal == SIGINT ? "INT" : signal == SIGTERM ? "TERM" : "HUP";
    for (const char* rank : {"[0] ", "[1] "})
      EXPECT_TRUE(holds(job.out(), fmt::format("{}saved on {}, 1 in all", rank, name))) << job.out() << job.err();
    EXPECT_TRUE(holds(job.err(), "the programs may take 25 s to end (--save-within)")) << job.err();
  }
}

// A rank that ends at once takes nothing from the other.
TEST(AProgram, HasItsTimeThoughAnotherRankEndsAtOnce) {
  for (const char* ends : {"trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done", "echo ready; exec sleep 20"}) {
    Process job(shells(fmt::format("if [ $RANK = 1 ]; then {}; fi; {}", ends, kSaves)));
    ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(30).code, 128 + SIGTERM) << job.err();
    EXPECT_TRUE(holds(job.out(), "saved on TERM, 1 in all")) << job.out() << job.err();
  }
}

TEST(AProgram, IsKilledWhenItsTimeIsOverOrASecondSignalComes) {
  Process late(tsprun_actor({"-n", "2"}, {"stubborn"}));
  ASSERT_TRUE(late.wait_for_output("ready", 2)) << late.err();
  late.signal(SIGTERM);
  pause_ms(2500);  // sooner it would be the same request
  EXPECT_FALSE(late.wait(0.1).ended);
  late.signal(SIGTERM);
  EXPECT_EQ(late.wait(10).code, 128 + SIGTERM) << late.err();
  Process within(shells("trap '' TERM; echo ready; sleep 60", {"--save-within", "1"}));
  ASSERT_TRUE(within.wait_for_output("ready", 2)) << within.err();
  within.signal(SIGTERM);
  EXPECT_EQ(within.wait(10).code, 128 + SIGTERM) << within.err();
}

// The collectives of ranks that were asked to end still work: they save together.
TEST(AProgram, CanUseCollectivesWhileItSaves) {
  Process job(tsprun_actor({"-n", "2"}, {"save_together"}));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(30).code, 128 + SIGTERM) << job.err();
  EXPECT_TRUE(job.wait_for_output("saved with 2 ranks", 2)) << job.out() << job.err();
}

// Where one node's tsprun alone gets the signal.
TEST(AProgram, HasItsTimeOnAllNodes) {
  const int port = free_port();
  Process first(node_words(0, port, {}, {"save_together"}), kSecret);
  Process second(node_words(1, port, {}, {"save_together"}), kSecret);
  for (Process* node : {&first, &second}) ASSERT_TRUE(node->wait_for_output("ready", 2)) << node->err();
  second.signal(SIGTERM);
  for (Process* node : {&first, &second}) {
    EXPECT_EQ(node->wait(30).code, 128 + SIGTERM) << node->err();
    EXPECT_TRUE(node->wait_for_output("saved with 4 ranks", 2)) << node->out() << node->err();
  }
}

TEST(AProgram, HasTimeAfterAnothersFailureIfItIsGiven) {
  const TemporaryDirectory directory;
  // Rank 1 fails once rank 0 can be asked to end.
  const auto line = [&](const std::string& name) {
    return fmt::format(
        "if [ $RANK = 1 ]; then while ! [ -e {0} ]; do sleep 0.05; done; exit 3; fi; trap 'sleep 1.2; echo saved; exit 0' TERM; "
        "touch {0}; while :; do sleep 0.05; done",
        directory.path(name));
  };
  const Finished given = run_program(shells(line("given"), {"--save-within", "20"}));
  EXPECT_EQ(given.end.code, 3) << given.describe();
  EXPECT_TRUE(holds(given.out, "saved")) << given.describe();
  const Finished usual = run_program(shells(line("usual")));
  EXPECT_EQ(usual.end.code, 3) << usual.describe();
  EXPECT_FALSE(holds(usual.out, "saved")) << usual.describe();
}

// --- signals that end nothing --------------------------------------------------------------------------------------------------

TEST(SignalsThatEndNothing, ReachProgramsThatHandleThem) {
  // The shell around rank 1's program has no handler, and would be ended.
  const std::string program = "trap 'echo got $name' USR1 USR2; echo ready; while :; do sleep 0.05; done";
  Process job(shells(fmt::format("name=it; export name; if [ $RANK = 1 ]; then sh -c \"{0}\"; :; else {0}; fi", program)));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  job.signal(SIGUSR1);
  EXPECT_TRUE(job.wait_for_output("got it", 2)) << job.err();
  job.signal(SIGUSR2);
  EXPECT_TRUE(job.wait_for_output("got it", 4)) << job.err();
  EXPECT_FALSE(job.wait(0.1).ended) << job.err();
  EXPECT_FALSE(holds(job.err(), "last sign")) << job.err();
}

TEST(TheSignalToSave, MakesACheckpointAndTheTrainingGoesOn) {
  for (const bool chosen : {false, true}) {
    const TextData data(2000);
    Process job(training(data, chosen ? Words{"--save-on", "USR1"} : Words{}));
    ASSERT_TRUE(job.wait_for_output("loss")) << job.err();
    for (int signal = 0; signal < 2; ++signal) {
      job.signal(chosen ? SIGUSR1 : SIGUSR2);
      pause_ms(30);
    }
    ASSERT_TRUE(job.wait_for_output("saved ")) << job.err();
    job.signal(chosen ? SIGUSR2 : SIGUSR1);  // the other one shows the board
    EXPECT_TRUE(job.wait_for_output("loss", 3)) << job.err();
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(30).code, 128 + SIGTERM) << job.err();
    EXPECT_TRUE(holds(job.err(), "last sign")) << job.err();
    EXPECT_TRUE(holds(job.err(), "saving after this step, and going on")) << job.err();
    int saved = 0;
    for (const std::string& line : lines_of(job.out())) saved += line.starts_with("saved ") ? 1 : 0;
    EXPECT_EQ(saved, 2) << job.out();  // one by the two signals, one at the end
  }
}

// A training that goes on to its end after it has saved is audited as any other.
TEST(TheSignalToSave, LeavesTheAuditAsItIs) {
  const TextData data(2000);
  Words words = training(data, {"--fault", "stall:rank=1,step=100,seconds=2"});  // the signal comes before
  *std::ranges::find(words, "1000000") = "200";
  Process job(words);
  ASSERT_TRUE(job.wait_for_output("loss")) << job.err();
  job.signal(SIGUSR2);
  EXPECT_EQ(job.wait(60).code, 0) << job.err();
  EXPECT_TRUE(holds(job.err(), "saving after this step, and going on")) << job.err();
  EXPECT_TRUE(std::filesystem::exists(data.path("runs/step-000200")));
}

}  // namespace
}  // namespace tsprun::detail::test::asked_to_end_test
