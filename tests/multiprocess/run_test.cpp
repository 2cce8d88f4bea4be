// What `tsprun run` gives a program, what it does with the program's output, and how it ends.

#include "tests/support/process.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <poll.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::run_test {
namespace {

Finished run_actor(const std::vector<std::string>& options, const std::vector<std::string>& action,
                   const ProcessOptions& process = {}) {
  return run_program(tsprun_actor(options, action), process);
}

/// The lines of each rank without their prefix.
std::map<int, std::vector<std::string>> by_rank(const std::string& text, int ranks) {
  std::map<int, std::vector<std::string>> result;
  for (const std::string& line : lines_of(text)) {
    bool found = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string prefix = fmt::format("[{}] ", rank);
      if (line.rfind(prefix, 0) != 0) continue;
      result[rank].push_back(line.substr(prefix.size()));
      found = true;
    }
    EXPECT_TRUE(found) << "a line without a rank: " << line.substr(0, 200);
  }
  return result;
}

TEST(RunOutput, LinesBearTheirRank) {
  const Finished run = run_actor({"-n", "3"}, {"print"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const auto out = by_rank(run.out, 3);
  const auto err = by_rank(run.err, 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(out.at(rank), (std::vector<std::string>{fmt::format("out of {}", rank), fmt::format("unended line of {}", rank)}))
        << run.describe();
    EXPECT_EQ(err.at(rank), std::vector<std::string>{fmt::format("err of {}", rank)}) << run.describe();
  }
}

TEST(RunOutput, OfOneRankBearsNothing) {
  const Finished run = run_actor({"-n", "1"}, {"print"});
  EXPECT_EQ(lines_of(run.out), (std::vector<std::string>{"out of 0", "unended line of 0"})) << run.describe();
  EXPECT_EQ(lines_of(run.err), std::vector<std::string>{"err of 0"}) << run.describe();
}

TEST(RunOutput, BearsNothingOnRequest) {
  const Finished run = run_actor({"-n", "2", "--no-prefix"}, {"print"});
  std::vector<std::string> lines = lines_of(run.err);
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"err of 0", "err of 1"})) << run.describe();
}

TEST(RunOutput, LinesOfManyRanksStayWhole) {
  constexpr int kRanks = 4;
  constexpr int kLines = 3000;
  const Finished run = run_actor({"-n", std::to_string(kRanks)}, {"lines", std::to_string(kLines), "300"});
  EXPECT_EQ(run.end.code, 0);
  const auto out = by_rank(run.out, kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(out.at(rank), std::vector<std::string>(kLines, std::string(300, static_cast<char>('a' + rank))));
  }
}

TEST(RunOutput, AVeryLongLineGetsThrough) {
  const Finished run = run_actor({"-n", "2"}, {"lines", "1", "3000000"});
  EXPECT_EQ(run.end.code, 0);
  for (char letter : {'a', 'b'}) EXPECT_EQ(std::count(run.out.begin(), run.out.end(), letter), 3'000'000);
}

// --- standard output that takes nothing --------------------------------------------------------------------------------------

/// tsprun with its stdout redirected as a shell does it.
Finished redirected(const std::string& redirection, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"sh", "-c", "exec \"$0\" \"$@\" " + redirection, tsprun_path()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_program(words);
}

const std::vector<std::vector<std::string>> kTalkative = {{"doctor"},
                                                          {"--help"},
                                                          {"plan", "--paper"},
                                                          {"-n", "2", "bench", "barrier", "--iters", "1"},
                                                          {"-n", "2", "run", "--", "echo", "hello"},
                                                          {"-n", "2", "run", "--", "sh", "-c", "echo hello; sleep 60"}};

TEST(StandardOutput, OnAFullDiskIsAFailureWithItsCause) {
  for (const auto& arguments : kTalkative) {
    const Finished run = redirected("> /dev/full", arguments);
    EXPECT_EQ(run.end.code, 1) << arguments.back() << run.describe();
    EXPECT_NE(run.err.find("writing to standard output: No space left on device"), std::string::npos) << run.describe();
    EXPECT_EQ(run.err.find("SIGPIPE"), std::string::npos) << run.describe();
    EXPECT_LT(run.end.seconds, 60) << run.describe();
  }
}

TEST(StandardOutput, ThatIsClosedIsAFailureOfThoseWhoWriteToIt) {
  for (const auto& arguments : kTalkative) {
    const Finished run = redirected("1>&-", arguments);
    EXPECT_EQ(run.end.code, 1) << arguments.back() << run.describe();
    EXPECT_NE(run.err.find("writing to standard output: Bad file descriptor"), std::string::npos) << run.describe();
  }
  EXPECT_EQ(redirected("1>&-", {"-n", "2", "run", "--", "true"}).end.code, 0);
}

TEST(StandardOutput, WhoseReaderHasGoneEndsTsprunAsSIGPIPEWould) {
  const TemporaryDirectory directory;
  for (const auto& arguments : kTalkative) {
    // The other end is closed before tsprun begins; the fifo is opened for both so that neither waits.
    const std::string fifo = directory.path("fifo" + std::to_string(&arguments - kTalkative.data()));
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    const Finished run = redirected(fmt::format("3<>{0} > {0} 3<&-", fifo), arguments);
    EXPECT_EQ(run.end.code, 128 + SIGPIPE) << arguments.back() << run.describe();
    EXPECT_EQ(run.err.find("writing to"), std::string::npos) << run.describe();
  }
}

TEST(StandardOutput, ThatTakesNothingIsInTheReport) {
  const TemporaryDirectory directory;
  for (const auto& arguments : {kTalkative[0], kTalkative[3], kTalkative[4]}) {
    std::vector<std::string> words = {"--json", directory.path("r")};
    words.insert(words.end(), arguments.begin(), arguments.end());
    redirected("> /dev/full", words);
    const nlohmann::json failure = read_json(directory.path("r")).at("failure");
    EXPECT_EQ(failure.at("kind"), "interrupted") << failure;
    EXPECT_TRUE(failure.at("signal").is_null()) << failure;
    EXPECT_EQ(failure.at("detail"), "writing to standard output: No space left on device") << failure;
  }
}

// --- a reader of standard error that takes nothing ---------------------------------------------------------------------------

bool is_full(const posix::UniqueFd& pipe) {
  pollfd event{pipe.get(), POLLOUT, 0};
  return ::poll(&event, 1, 0) == 0;
}

// The verdict, and the warnings behind it, are for whoever reads; if nobody does, a further signal ends tsprun all the same.
TEST(StandardError, ThatNobodyReadsKeepsNoSignalFromEndingTsprun) {
  const TemporaryDirectory directory;
  const std::string fifo = directory.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const posix::UniqueFd reader(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(reader);
  Process process({"sh", "-c", "exec \"$0\" \"$@\" 2> " + fifo, tsprun_path(), "-n", "2", "--json", directory.path("r"),
                   "--fault", "kill:rank=1,op=barrier,seq=1", "run", "--", "sh", "-c", "yes >&2"});
  for (int tries = 0; tries < 3000 && !is_full(reader); ++tries) ::usleep(10'000);
  ASSERT_TRUE(is_full(reader));
  // The first ends the ranks. How soon tsprun has nothing to do but to write isn't known from outside.
  for (int tries = 0; tries < 100 && !process.wait(0.2).ended; ++tries) process.signal(SIGINT);
  EXPECT_EQ(process.wait(0.1).code, 128 + SIGINT);
  EXPECT_TRUE(process.wait_until_nothing_is_left(0.5));
  EXPECT_EQ(read_json(directory.path("r")).at("failure").at("kind"), "interrupted");
}

TEST(RunEnvironment, TellsARankItsPlace) {
  const auto is_free = [](const Finished& run) { return run.out.find("MASTER_PORT is free") != std::string::npos; };
  Finished run = run_actor({"-n", "2"}, {"environment"});
  if (!is_free(run)) run = run_actor({"-n", "2"}, {"environment"});  // somebody else took it in between
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const auto out = by_rank(run.out, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto& lines = out.at(rank);
    auto has = [&](const std::string& line) { return std::find(lines.begin(), lines.end(), line) != lines.end(); };
    EXPECT_TRUE(has(fmt::format("RANK={}", rank))) << run.describe();
    EXPECT_TRUE(has(fmt::format("LOCAL_RANK={}", rank))) << run.describe();
    EXPECT_TRUE(has("WORLD_SIZE=2")) << run.describe();
    EXPECT_TRUE(has("LOCAL_WORLD_SIZE=2")) << run.describe();
    EXPECT_FALSE(has("MASTER_ADDR=unset")) << run.describe();
    EXPECT_EQ(has("MASTER_PORT is free"), rank == 0) << run.describe();
  }
}

TEST(RunEnvironment, HasAPortThatNoOutgoingConnectionIsGiven) {
  for (int job = 0; job < 5; ++job) {
    const Finished run = run_tsprun({"-n", "1", "run", "--", "sh", "-c", "echo $MASTER_PORT"});
    const int port = std::stoi(run.out);
    EXPECT_TRUE(port >= 20'000 && port < 29'000) << run.describe();
  }
}

TEST(RunEnvironment, HasOneThreadOfOpenMPUnlessSomebodySaysOtherwise) {
  const auto answer = [](std::vector<std::string> words, const std::string& before) {
    words.insert(words.begin(), {"env", before.empty() ? "-uOMP_NUM_THREADS" : before, tsprun_path()});
    words.insert(words.end(), {"run", "--", "sh", "-c", "echo ${OMP_NUM_THREADS-unset}"});
    return run_program(words);
  };
  const Finished usual = answer({"-n", "2", "--no-prefix"}, "");
  EXPECT_EQ(usual.out, "1\n1\n") << usual.describe();
  EXPECT_NE(usual.err.find("OMP_NUM_THREADS=1 for each rank, as it isn't set"), std::string::npos) << usual.describe();
  const Finished set = answer({"-n", "2", "--no-prefix"}, "OMP_NUM_THREADS=3");
  EXPECT_EQ(set.out, "3\n3\n") << set.describe();
  EXPECT_EQ(set.err.find("OMP_NUM_THREADS"), std::string::npos) << set.describe();
  EXPECT_EQ(answer({"-n", "1"}, "").out, "unset\n");
  EXPECT_EQ(answer({"-n", "1", "--threads", "2"}, "").out, "2\n");
}

/// Checks that the library's log in a rank obeys tsprun's options.
TEST(RunEnvironment, TellsHowMuchIsToBeSaid) {
  const auto level = [](std::vector<std::string> words) {
    words.insert(words.end(), {"run", "--", "sh", "-c", "echo $TSP_LOG_LEVEL"});
    return run_tsprun(words).out;
  };
  EXPECT_EQ(level({"-n", "1"}), "info\n");
  EXPECT_EQ(level({"-n", "1", "-q"}), "error\n");
  EXPECT_EQ(level({"-n", "1", "--log-level", "off"}), "off\n");
}

TEST(RunEnvironment, OnlyRankZeroHasInput) {
  ProcessOptions options;
  options.input = "one\ntwo\nthree\n";
  const Finished run = run_actor({"-n", "3"}, {"stdin"}, options);
  const auto out = by_rank(run.out, 3);
  EXPECT_EQ(out.at(0), std::vector<std::string>{"3 lines of input"}) << run.describe();
  for (int rank : {1, 2}) EXPECT_EQ(out.at(rank), std::vector<std::string>{"0 lines of input"}) << run.describe();
}

TEST(RunCollectives, AreRightOnManyRanks) {
  for (int ranks : {1, 2, 5}) {
    const Finished run = run_actor({"-n", std::to_string(ranks)}, {"sum"});
    EXPECT_EQ(run.end.code, 0) << run.describe();
    EXPECT_EQ(static_cast<int>(lines_of(run.out).size()), ranks) << run.describe();
  }
}

TEST(RunCollectives, AreRightWithEightRanksPerCore) {
  ProcessOptions options;
  options.cores = 2;
  const Finished run = run_actor({"-n", "16"}, {"sum", "5"}, options);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_EQ(lines_of(run.out).size(), 16U) << run.describe();
}

TEST(RunCollectives, OfTwoJobsDoNotMeet) {
  Process first(tsprun_actor({"-n", "4"}, {"sum", "30"}));
  Process second(tsprun_actor({"-n", "3"}, {"sum", "30"}));
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  EXPECT_TRUE(first.wait_for_output("sum over 4 ranks is right", 4, 5)) << first.out();
  EXPECT_TRUE(second.wait_for_output("sum over 3 ranks is right", 3, 5)) << second.out();
}

TEST(RunCollectives, OfARankThatComputesLongerThanTheDeadlineGoOn) {
  const Finished run = run_actor({"-n", "3", "--timeout", "1"}, {"compute", "2"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

TEST(RunExitCode, IsThatOfTheFirstFailingRank) {
  const std::string program = "if [ $RANK = 1 ]; then exit 3; fi; sleep 1000";
  const Finished run = run_tsprun({"-n", "3", "run", "--", "sh", "-c", program});
  EXPECT_EQ(run.end.code, 3) << run.describe();
  EXPECT_LT(run.end.seconds, 5) << run.describe();
  EXPECT_NE(run.err.find("rank 1"), std::string::npos) << run.describe();
}

TEST(RunExitCode, IsASignalPlus128) {
  const Finished run = run_tsprun({"-n", "2", "run", "--", "sh", "-c", "if [ $RANK = 0 ]; then kill -USR1 $$; fi; sleep 1000"});
  EXPECT_EQ(run.end.code, 128 + 10) << run.describe();
  EXPECT_LT(run.end.seconds, 5) << run.describe();
}

TEST(RunExitCode, IsZeroWhenAllSucceed) {
  const Finished run = run_tsprun({"-n", "3", "run", "--", "true"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_EQ(run.err, "");
}

TEST(RunReport, HoldsNoFailureAfterSuccess) {
  const TemporaryDirectory directory;
  const Finished run = run_actor({"-n", "2", "--json", directory.path("report.json")}, {"sum"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const nlohmann::json report = read_json(directory.path("report.json"));
  EXPECT_EQ(report.at("command"), "run");
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_TRUE(report.at("failure").is_null());
}

// What happened is known when the report is written: a full disk spoils a success and nothing else.
TEST(RunReport, ThatCannotBeWrittenLeavesTheFailuresExitCode) {
  const std::string why = "--json /dev/full: writing the report: No space left on device";
  const Finished good = run_tsprun({"-n", "2", "--json", "/dev/full", "run", "--", "true"});
  EXPECT_EQ(good.end.code, 1) << good.describe();
  EXPECT_NE(good.err.find(why), std::string::npos) << good.describe();
  const Finished killed = run_tsprun({"-n", "2", "--json", "/dev/full", "run", "--", "sh", "-c", "kill -9 $$"});
  EXPECT_EQ(killed.end.code, 128 + 9) << killed.describe();
  EXPECT_NE(killed.err.find(why), std::string::npos) << killed.describe();
  const Finished refused = run_tsprun({"-n", "0", "--json", "/dev/full", "run", "--", "true"});
  EXPECT_EQ(refused.end.code, 2) << refused.describe();
}

TEST(RunReport, OfAnEarlierRunIsGoneIfTsprunIsKilled) {
  const TemporaryDirectory directory;
  const std::string path = directory.path("report.json");
  ASSERT_EQ(run_tsprun({"--json", path, "run", "--", "true"}).end.code, 0);
  ASSERT_TRUE(read_json(path).is_object());
  Process process({tsprun_path(), "--json", path, "run", "--", "sh", "-c", "echo ready; sleep 60"});
  ASSERT_TRUE(process.wait_for_output("ready")) << process.err();
  process.signal(SIGKILL);
  process.wait();
  const nlohmann::json report = read_json(path);
  EXPECT_EQ(report.at("command"), "run");
  EXPECT_EQ(report.at("failure").at("kind"), "interrupted");
  EXPECT_NE(report.at("failure").at("detail").get<std::string>().find("isn't over"), std::string::npos) << report;
}

TEST(RunChildren, LeftBehindByAProgramAreEnded) {
  const Finished run = run_actor({"-n", "2"}, {"children", "leave"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

// A shell that execs tsprun hands on its own children, such as those of `exec > >(tee log)`.
TEST(RunChildren, OfTheShellThatBecameTsprunGetAllItsOutput) {
  const TemporaryDirectory directory;
  const std::string fifo = directory.path("fifo");
  const std::string log = directory.path("log");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  // The reader begins when the ranks are gone.
  const std::string shell = fmt::format("{{ sleep 1; cat; }} < {0} > {1} & exec \"$0\" \"$@\" > {0}", fifo, log);
  std::vector<std::string> words = {"sh", "-c", shell};
  const std::vector<std::string> job = tsprun_actor({"-n", "2"}, {"lines", "1000", "300"});
  words.insert(words.end(), job.begin(), job.end());
  Process process(words);
  EXPECT_EQ(process.wait().code, 0) << process.err();
  EXPECT_TRUE(process.wait_until_nothing_is_left(20));
  EXPECT_EQ(std::filesystem::file_size(log), 2U * 1000 * (4 + 300 + 1));
}

TEST(RunChildren, OfTheShellThatBecameTsprunAreNotEndedWithTheJob) {
  // Of the last job tsprun itself must find what is left: a process that has lost its guardian.
  struct Case {
    const char* shell;
    const char* program;
  };
  const char* const child = "sleep 1000 > /dev/null 2>&1 & echo $! > {}; exec \"$0\" \"$@\"";
  // Its parent ends during the job, so that it becomes a child of tsprun, which adopts what ranks leave.
  const char* const grandchild = "(sleep 0.2; sleep 1000 > /dev/null 2>&1 & echo $! > {}) & exec \"$0\" \"$@\"";
  for (const auto& [begin, program] :
       {Case{child, "true"}, Case{child, "kill -9 $$"}, Case{child, "setsid sleep 1000 & sleep 0.2; kill -9 $PPID"},
        Case{grandchild, "while ! [ -s {} ]; do sleep 0.05; done; sleep 0.2"}}) {
    const TemporaryDirectory directory;
    const auto with_file = [&](const char* text) { return fmt::format(fmt::runtime(text), directory.path("pid")); };
    Process process({"sh", "-c", with_file(begin), tsprun_path(), "-n", "2", "run", "--", "sh", "-c", with_file(program)});
    EXPECT_TRUE(process.wait().ended) << program << process.err();
    pid_t spared = 0;
    std::ifstream(directory.path("pid")) >> spared;
    std::vector<pid_t> left;
    until(5, [&] { return (left = process.marked()).size() <= 1; });
    EXPECT_EQ(left, std::vector<pid_t>{spared}) << program << process.err();
  }
}

// --- requests that can't be served -------------------------------------------------------------------------------------------

/// tsprun must refuse: exit code 2, nothing on stdout, a message that holds all of `words`.
void expect_refused(const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_EQ(run.out, "") << run.describe();
  EXPECT_LT(run.end.seconds, 5);
  for (const std::string& word : words) {
    EXPECT_NE(run.err.find(word), std::string::npos) << "\"" << word << "\" is missing\n" << run.describe();
  }
}

TEST(Refusal, OfImpossibleNumbersOfRanks) {
  expect_refused({"-n", "0", "run", "--", "true"}, {"-n 0", "1"});
  expect_refused({"-n", "100000", "run", "--", "true"}, {"-n 100000"});
  expect_refused({"-n", "-4", "run", "--", "true"}, {"-n -4"});
  expect_refused({"-n", "two", "run", "--", "true"}, {"-n two"});
  expect_refused({"-n", "99999999999999999999", "run", "--", "true"}, {"-n 99999999999999999999"});
  expect_refused({"run", "-n", "0", "--", "true"}, {"-n 0"});
}

TEST(Refusal, OfALayoutThatContradictsTheRanks) {
  expect_refused({"-n", "4", "--layout", "tsp=2", "run", "--", "true"}, {"tsp=2", "4"});
  expect_refused({"--layout", "nonsense=2", "run", "--", "true"}, {"nonsense"});
}

TEST(Refusal, OfAnUnknownOperation) { expect_refused({"-n", "2", "bench", "all_gahter"}, {"all_gahter", "all_gather"}); }

TEST(Refusal, OfASizeBeyondTheMemory) {
  expect_refused({"-n", "2", "bench", "all_gather", "--sizes", "100000G"}, {"100000G"});
  expect_refused({"-n", "2", "bench", "all_gather", "--sizes", "many"}, {"many"});
  expect_refused({"-n", "2", "--mem-per-rank", "60000G", "run", "--", "true"}, {"60000G"});
}

TEST(Refusal, OfAProgramThatIsNotThere) {
  expect_refused({"-n", "2", "run", "--", "/nonexistent/program"}, {"/nonexistent/program"});
  expect_refused({"-n", "2", "run"}, {"program"});
}

TEST(Refusal, OfUnknownCommandsAndOptions) {
  expect_refused({"-n", "2", "dance"}, {"dance"});
  expect_refused({"--no-such-option", "run", "--", "true"}, {"--no-such-option"});
  expect_refused({"--timeout", "soon", "run", "--", "true"}, {"soon"});
  expect_refused({"--json", "/nonexistent/report.json", "run", "--", "true"}, {"/nonexistent/report.json"});
  expect_refused({}, {});
}

// --- a rank joins once
// ----------------------------------------------------------------------------------------------------------

TEST(Joining, OfASecondProgramOfARankIsRefused) {
  const std::string actor = program_path("actor");
  const Finished run = run_program({tsprun_path(), "-n", "3", "run", "--", "sh", "-c", actor + " sum 1 && " + actor + " sum 1"});
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_NE(run.err.find("has joined the job already, as process"), std::string::npos) << run.describe();
}

TEST(Joining, AgainInAProcessIsRefused) {
  for (const char* when : {"during", "after"}) {
    const Finished run = run_actor({"-n", "2"}, {"join_again", when});
    EXPECT_EQ(run.end.code, 0) << run.describe();
    const std::map<int, std::vector<std::string>> said = by_rank(run.out, 2);
    ASSERT_EQ(said.size(), 2U) << run.describe();
    for (const auto& [rank, lines] : said) {
      ASSERT_EQ(lines.size(), 1U) << run.describe();
      EXPECT_NE(lines[0].find(fmt::format("rank {} has joined the job already, as this process", rank)), std::string::npos);
    }
  }
}

TEST(Joining, OfWhatARankStartsIsRefused) {
  const Finished run = run_actor({"-n", "2"}, {"start", program_path("actor") + " sum 1"});
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_NE(run.err.find("only one process joins for a rank"), std::string::npos) << run.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::run_test
