// What the kernel's counts say of a process that its out-of-memory killer has ended.
#include "transport/machine.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tsprun::detail::machine_test
