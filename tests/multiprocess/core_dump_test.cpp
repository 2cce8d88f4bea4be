// What a core dump of a rank would hold: not the node's memory, of which the most part is holes.

#include "tests/support/dumped_memory.h"
#include "tests/support/process.h"
#include "tests/support/text_data.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace tsprun::detail::test::core_dump_test {
namespace {

std::vector<std::string> training(const TextData& data, const std::vector<std::string>& options) {
  std::vector<std::string> words = {tsprun_path(), "-n", "2"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"train", "--config", "nano", "--data", data.text(), "--seq", "32", "--steps", "1000000"});
  return words;
}

TEST(CoreDump, LeavesTheNodesMemoryOut) {
  const TextData data(3000);
  Process job(training(data, {}));
  ASSERT_TRUE(job.wait_for_output("step ")) << job.err();
  for (const pid_t process : job.marked()) {
    for (const MappedRegion& region : mapped_regions(process)) {
      EXPECT_FALSE(region.dumped && region.name.find("memfd:tsprun") != std::string::npos) << region.name << " of " << process;
    }
  }
}

#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)
TEST(CoreDump, DoesNotDelayTheVerdict) {
  const TextData data(3000);
  std::vector<std::string> words = {"sh", "-c", fmt::format("cd {}; ulimit -c unlimited; exec \"$@\"", data.path("")), "sh"};
  const std::vector<std::string> tsprun = training(data, {"--timeout", "20"});
  words.insert(words.end(), tsprun.begin(), tsprun.end());
  Process job(words);
  ASSERT_TRUE(job.wait_for_output("step ")) << job.err();
  std::vector<pid_t> ranks = job.marked();
  std::erase(ranks, job.pid());
  ASSERT_EQ(ranks.size(), 2U);
  const PatientWatch watch;
  ::kill(ranks.back(), SIGSEGV);
  EXPECT_EQ(job.wait().code, 1) << job.err();
  EXPECT_LT(watch.seconds(), 10) << "9 s more than the product promises, for slow disks";
  EXPECT_NE(job.err().find("was killed by signal 11 (SIGSEGV)"), std::string::npos) << job.err();
  // Where cores are files of the folder (core_pattern says so): small ones.
  for (const auto& file : std::filesystem::directory_iterator(data.path(""))) {
    struct stat status {};
    ::stat(file.path().c_str(), &status);
    EXPECT_LT(status.st_blocks * 512, 512 << 20) << file.path();
  }
}
#endif

}  // namespace
}  // namespace tsprun::detail::test::core_dump_test
