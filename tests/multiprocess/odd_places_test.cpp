// Machines and files that aren't as usual: refused in words, or done without; nobody hangs, nothing is left open or empty.

#include "tests/support/process.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::odd_places_test {
namespace {

/// tsprun behind a shell's `preparation`.
std::vector<std::string> prepared(const std::string& preparation, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"sh", "-c", preparation + "; exec \"$@\"", "sh", tsprun_path()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

std::vector<std::string> short_training(const TextData& data, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"-n", "2", "train", "--config", "nano", "--data", data.text(), "--seq", "32", "--steps", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Fifo, ThatNobodyReadsIsRefused) {
  const TextData data(3000);
  ASSERT_EQ(::mkfifo(data.path("fifo").c_str(), 0600), 0);
  for (const char* option : {"--json", "--trace"}) {
    const Finished run = run_tsprun(short_training(data, {option, data.path("fifo")}), {}, 10);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_NE(run.err.find("FIFO"), std::string::npos) << run.describe();
  }
}

TEST(Fifo, WithAReaderTakesTheReport) {
  const TextData data(3000);
  ASSERT_EQ(::mkfifo(data.path("fifo").c_str(), 0600), 0);
  // The reader is there before tsprun begins; that has a descriptor of the FIFO, too, so that the reader waits for its end.
  const std::string reader =
      fmt::format("exec 9<>{0} 8<{0}; cat <&8 >{1} 8<&- 9<&- & exec 8<&-", data.path("fifo"), data.path("copy"));
  const Finished run = run_program(prepared(reader, short_training(data, {"--json", data.path("fifo")})));
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_TRUE(read_json(data.path("copy")).at("failure").is_null());
}

TEST(LoopbackInterface, ThatIsDownIsRefusedBeforeRanksStart) {
  const TextData data(3000);
  std::vector<std::string> words = {"unshare", "-n", tsprun_path(), "--nodes", "2"};
  const std::vector<std::string> training = short_training(data, {});
  words.insert(words.end(), training.begin(), training.end());
  const Finished run = run_program(words, {}, 10);
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("ip link set lo up"), std::string::npos) << run.describe();
}

// LeakSanitizer can't work without /proc.
#if !defined(TSP_SANITIZE_ADDRESS)
TEST(Machine, WithoutProcIsToldAndWorks) {
  const TextData data(3000);
  std::vector<std::string> words = {"unshare", "-m", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh", tsprun_path()};
  const std::vector<std::string> training = short_training(data, {});
  words.insert(words.end(), training.begin(), training.end());
  const Finished run = run_program(words);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_NE(run.err.find("/proc isn't mounted"), std::string::npos) << run.describe();
}
#endif

TEST(TheSecretsFolder, IsItsOwnersAloneWhateverTheUmask) {
  const TemporaryDirectory home;
  const std::vector<std::string> alone = {"-n",          "2",         "--nnodes", "2",   "--node-rank", "0",   "--rendezvous",
                                          "127.0.0.1:1", "--timeout", "1",        "run", "--",          "true"};
  const ProcessOptions options{.environment = {{"HOME", home.path("")}}};
  run_program(prepared("umask 000", alone), options);
  for (const char* folder : {".config", ".config/tsprun"}) {
    struct stat status {};
    ASSERT_EQ(::stat(home.path(folder).c_str(), &status), 0) << folder;
    EXPECT_EQ(status.st_mode & 0777, 0700U) << folder;
  }
  ::chmod(home.path(".config/tsprun").c_str(), 0777);
  const Finished open = run_program(prepared("umask 000", alone), options);
  EXPECT_EQ(open.end.code, 2) << open.describe();
  EXPECT_NE(open.err.find("chmod 700"), std::string::npos) << open.describe();
}

/// As <(command) gives one: what is written comes to its end, or the wait to its own.
TEST(Fifo, AsTheSecretsFileIsReadToItsEndOrRefusedAtTheDeadline) {
  const TemporaryDirectory folder;
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto alone = [&](const char* timeout) {
    return std::vector<std::string>{"-n",           "2",           "--nnodes",  "2",     "--node-rank",   "0",
                                    "--rendezvous", "127.0.0.1:1", "--timeout", timeout, "--secret-file", fifo,
                                    "run",          "--",          "true"};
  };
  const Finished silent = run_tsprun(alone("0.3"), {}, 10);
  EXPECT_EQ(silent.end.code, 2) << silent.describe();
  EXPECT_NE(silent.err.find("nobody has written the secret"), std::string::npos) << silent.describe();
  const Finished told = run_program(prepared("(sleep 0.2; echo too short) >" + fifo + " & true", alone("5")), {}, 20);
  EXPECT_EQ(told.end.code, 2) << told.describe();
  EXPECT_NE(told.err.find("a secret of 9 bytes"), std::string::npos) << told.describe();
}

TEST(Stack, ThatIsTooSmallIsNamedAndASoftLimitIsRaised) {
  const TextData data(3000);
  const Finished hard = run_program(prepared("ulimit -s 64", {"doctor"}), {}, 20);
  EXPECT_EQ(hard.end.code, 2) << hard.describe();
  EXPECT_NE(hard.err.find("ulimit -s"), std::string::npos) << hard.describe();
  const Finished soft = run_program(prepared("ulimit -Ss 64", short_training(data, {})));
  EXPECT_EQ(soft.end.code, 0) << soft.describe();
}

TEST(SystemCalls, ThatAreForbiddenAreDoneWithoutOrNamed) {
  const TextData data(3000);
  const auto without = [&](const char* call) {
    std::vector<std::string> words = {program_path("without_call"), call, tsprun_path()};
    const std::vector<std::string> training = short_training(data, {"--threads", "1", "--bind", "core"});
    words.insert(words.end(), training.begin(), training.end());
    return run_program(words, {}, 30);
  };
  const Finished affinity = without("sched_getaffinity");
  EXPECT_EQ(affinity.end.code, 0) << affinity.describe();
  const Finished waiting = without("waitid");
  EXPECT_EQ(waiting.end.code, 2) << waiting.describe();
  EXPECT_NE(waiting.err.find("waitid"), std::string::npos) << waiting.describe();
}

#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)  // which need more
TEST(AddressSpace, ThatSufficesForTheRanksSufficesForTheAudit) {
  const TextData data(3000);
  for (const char* limit : {"ulimit -v 900000", "ulimit -d 400000"}) {
    const Finished run = run_program(prepared(limit, short_training(data, {})));
    EXPECT_EQ(run.end.code, 0) << limit << run.describe();
    EXPECT_NE(run.out.find("equal the forecast"), std::string::npos) << limit << run.describe();
  }
}
#endif

/// The file has no name until it is whole, so that nothing is left of it, whoever is killed.
TEST(UnfinishedResults, VanishWithTsprun) {
  const TextData data(60'000);
  Process job({tsprun_path(), "-n", "2", "eval", "--config", "nano", "--data", data.text(), "--seq", "32", "--logits",
               data.path("logits.st"), "--fault", "stall:rank=1,op=all_gather,seq=9,seconds=60", "--timeout", "60"});
  const auto holds_it = [&](pid_t process) {
    const std::string folder = "/proc/" + std::to_string(process) + "/fd";
    std::error_code gone;
    for (const auto& each : std::filesystem::directory_iterator(folder, gone)) {
      const std::string target = std::filesystem::read_symlink(each.path(), gone).string();
      if (target.starts_with(data.path("")) && target.ends_with("(deleted)")) return true;
    }
    return false;
  };
  bool seen = false;
  for (int tries = 0; tries < 1000 && !seen; ++tries) {
    std::vector<pid_t> ranks = job.marked();
    std::erase(ranks, job.pid());
    seen = std::ranges::any_of(ranks, holds_it);
    if (!seen) ::usleep(10'000);
  }
  EXPECT_TRUE(seen) << job.out() << job.err();
  ::kill(job.pid(), SIGKILL);
  EXPECT_TRUE(job.wait_until_nothing_is_left(5));
  for (const auto& entry : std::filesystem::directory_iterator(data.path("")))
    EXPECT_EQ(entry.path().filename().string().find("logits"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace tsprun::detail::test::odd_places_test
