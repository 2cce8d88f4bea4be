// What the kernel tells of a process.
#include "transport/posix.h"

#include <gtest/gtest.h>

#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::posix_test {
namespace {

// Its name looks like the fields that follow it.
TEST(ProcessStat, FollowsAProcessFromStopToEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NAME, "a) R 1 (b c");
    ::raise(SIGSTOP);
    for (;;) ::pause();
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  std::optional<posix::ProcessStat> stat = posix::process_stat(child);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->pid, child);
  EXPECT_EQ(stat->state, 'T');
  EXPECT_EQ(stat->parent, ::getpid());
  EXPECT_EQ(stat->group, ::getpgrp());
  EXPECT_TRUE(posix::is_stopped(child));

  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, WCONTINUED), child);
  EXPECT_FALSE(posix::is_stopped(child));

  ::kill(child, SIGKILL);
  siginfo_t end{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT), 0);
  stat = posix::process_stat(child);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->state, 'Z');
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(posix::process_stat(child));
  EXPECT_FALSE(posix::is_stopped(child));
}

}  // namespace
}  // namespace tsprun::detail::posix_test
