// A rank that the kernel's out-of-memory killer ends, in a memory cgroup of the test's own: the verdict tells it from any other
// SIGKILL.

#include "tests/support/process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::out_of_memory_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLimit = "268435456";

/// Returns this process's path in the hierarchy of a v1 controller, or of v2 if `controller` is empty.
std::string path_in(const std::string& controller) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

bool write_to(const fs::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text << std::flush;
  return out.good();
}

/// A memory cgroup with a limit, below this process's own or, where that can't have children, below the root of the hierarchy.
class LimitedGroup {
 public:
  LimitedGroup() {
    const std::string name = fmt::format("tsprun-test-{}", ::getpid());
    const fs::path v1 = "/sys/fs/cgroup/memory";
    const fs::path v2 = "/sys/fs/cgroup";
    for (const std::string& below : {path_in("memory"), std::string("/")})
      take(v1 / below.substr(1) / name, "memory.limit_in_bytes");
    for (const std::string& below : {path_in(""), std::string("/")}) take(v2 / below.substr(1) / name, "memory.max");
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;
  ~LimitedGroup() {
    std::error_code error;
    for (int tries = 0; !folder_.empty() && ::rmdir(folder_.c_str()) != 0 && tries < 100; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  /// The group's folder; empty if none can be made here.
  const fs::path& folder() const { return folder_; }
  const std::string& why_not() const { return why_not_; }

 private:
  void take(const fs::path& folder, const char* limit) {
    if (!folder_.empty()) return;
    std::error_code error;
    if (!fs::create_directory(folder, error)) {
      why_not_ += fmt::format("; {}: {}", folder.string(), error.message());
    } else if (!fs::exists(folder / limit) || !write_to(folder / limit, kLimit)) {
      why_not_ += fmt::format("; {}: its memory can't be limited", folder.string());
      ::rmdir(folder.c_str());
    } else {
      folder_ = folder;
      // Else the machine swaps instead.
      for (const char* swap : {"memory.memsw.limit_in_bytes", "memory.swap.max"}) {
        if (fs::exists(folder / swap)) write_to(folder / swap, std::string(swap) == "memory.swap.max" ? "0" : kLimit);
      }
    }
  }

  fs::path folder_;
  std::string why_not_;
};

// One test, since a cgroup counts the kills in those below it, too.
TEST(OutOfMemoryKill, IsToldAsSuchWhenTheJobsCgroupIsTooSmallAndBlamedForNoOther) {
  const Finished other = run_tsprun({"-n", "2", "run", "--", "sh", "-c", "[ $RANK = 0 ] && exec sleep 100; kill -9 $$"});
  EXPECT_EQ(other.err.find("killer has struck in this job's cgroup"), std::string::npos) << other.describe();
  EXPECT_NE(other.err.find("rank 1 was killed by signal 9"), std::string::npos) << other.describe();

  const LimitedGroup group;
  if (group.folder().empty()) GTEST_SKIP() << "no memory cgroup can be made here" << group.why_not();
  const TemporaryDirectory directory;
  // `tail` keeps all of a file that has no line.
  Process job({"sh", "-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"", group.folder().string(), tsprun_path(), "-n", "2",
               "--json", directory.path("report"), "run", "--", "sh", "-c",
               "[ $RANK = 0 ] && exec sleep 100; exec tail /dev/zero"});
  EXPECT_EQ(job.wait().code, 128 + SIGKILL) << job.err();
  EXPECT_NE(job.err().find("the kernel's out-of-memory killer has struck in this job's cgroup: its memory limit is too small"),
            std::string::npos)
      << job.err();
  const nlohmann::json failure = read_json(directory.path("report")).at("failure");
  EXPECT_EQ(failure.at("kind"), "killed") << failure;
  EXPECT_EQ(failure.at("rank"), 1) << failure;
  EXPECT_EQ(failure.at("signal"), SIGKILL) << failure;
}

}  // namespace
}  // namespace tsprun::detail::test::out_of_memory_test
