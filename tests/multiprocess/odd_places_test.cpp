// Machines and files that aren't as usual: refused in words, or done without; nobody hangs, nothing is left open or empty.

#include "tests/support/process.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <sys/stat.h>
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
  const std::string reader = "cat <" + data.path("fifo") + " >" + data.path("copy") + " & sleep 0.3";
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

}  // namespace
}  // namespace tsprun::detail::test::odd_places_test
