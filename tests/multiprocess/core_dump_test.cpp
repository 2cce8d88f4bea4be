// What a core dump of a rank would hold: not the node's memory, of which the most part is holes.

#include "tests/support/process.h"
#include "tests/support/text_data.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace tsprun::test::core_dump_test {
namespace {

struct Region {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string name;
  std::uint64_t touched = 0;  ///< bytes that this process has touched
};

/// The mappings that the kernel would write: writable ones without "dd" among their flags.
std::vector<Region> dumped(pid_t pid) {
  std::vector<Region> regions;
  Region region;
  bool writable = false;
  std::ifstream maps(fmt::format("/proc/{}/smaps", pid));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (const std::size_t dash = first.find('-'); dash != std::string::npos && first.back() != ':') {
      std::string mode, skip;
      words >> mode >> skip >> skip >> skip;
      region = {std::stoull(first.substr(0, dash), nullptr, 16), std::stoull(first.substr(dash + 1), nullptr, 16), {}, 0};
      std::getline(words >> std::ws, region.name);
      writable = mode.at(1) == 'w';
    } else if (first == "Rss:") {
      words >> region.touched;
      region.touched *= 1024;
    } else if (first == "VmFlags:" && writable && line.find(" dd") == std::string::npos) {
      regions.push_back(region);
    }
  }
  return regions;
}

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
    for (const Region& region : dumped(process))
      EXPECT_EQ(region.name.find("memfd:tsprun"), std::string::npos) << region.name << " of " << process;
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
  const std::uint64_t began = posix::now_ns();
  ::kill(ranks.back(), SIGSEGV);
  EXPECT_EQ(job.wait(15).code, 1) << job.err();
  EXPECT_LT(static_cast<double>(posix::now_ns() - began) * 1e-9, 3) << "2 s more than the product promises, for slow disks";
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
}  // namespace tsprun::test::core_dump_test
