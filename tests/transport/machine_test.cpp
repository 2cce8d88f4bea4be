// What the kernel's counts say of a process that its out-of-memory killer has ended, and where a thread's processors are.
#include "transport/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace tsprun::detail::machine_test {
namespace {

using machine::OutOfMemoryKills;
using machine::shortage;
using machine::Shortage;

TEST(Shortage, IsTheCgroupsOnlyIfItsLimitWasReached) {
  const OutOfMemoryKills before{.machine = 10, .cgroup = 3, .limit = 7};
  EXPECT_EQ(shortage(before, before), Shortage::none);
  EXPECT_EQ(shortage(before, {.machine = 11, .cgroup = 4, .limit = 8}), Shortage::cgroup);
  // The machine's killer found its victim in this cgroup.
  EXPECT_EQ(shortage(before, {.machine = 11, .cgroup = 4, .limit = 7}), Shortage::machine);
  EXPECT_EQ(shortage(before, {.machine = 11, .cgroup = 3, .limit = 7}), Shortage::machine);
  // Under cgroup v1 it isn't known whose limit it was.
  EXPECT_EQ(shortage({.machine = 10, .cgroup = 3}, {.machine = 11, .cgroup = 4}), Shortage::either);
  EXPECT_EQ(shortage({.machine = 10, .cgroup = 3}, {.machine = 11, .cgroup = 3}), Shortage::machine);
  // A limit that was reached, and memory found without a kill.
  EXPECT_EQ(shortage(before, {.machine = 10, .cgroup = 3, .limit = 9}), Shortage::none);
}

TEST(NumaNode, IsTheOneWithAllOfTheThreadsProcessors) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("tsp-numa-" + std::to_string(::getpid()));
  const auto node_of = [&](const std::string& first, const std::string& second) {
    for (const auto& [name, cores] : {std::pair{"node0", first}, std::pair{"node3", second}}) {
      fs::create_directories(folder / name);
      std::ofstream(folder / name / "cpulist") << cores << "\n";
    }
    const int node = machine::numa_node_of_this_thread(folder.c_str());
    fs::remove_all(folder);
    return node;
  };
  EXPECT_EQ(node_of("", "0-8191"), 3);
  EXPECT_EQ(node_of("0,1,2-8191", "8192-9000"), 0);
  EXPECT_EQ(node_of("9000", "9001"), -1) << "neither";
  EXPECT_EQ(node_of("x", "5-,-"), -1) << "nonsense";
  EXPECT_EQ(machine::numa_node_of_this_thread((folder / "none").c_str()), -1);
}

}  // namespace
}  // namespace tsprun::detail::machine_test
