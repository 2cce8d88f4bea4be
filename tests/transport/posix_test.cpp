// What the kernel tells of a process, and writing.
#include "transport/posix.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
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

// Whoever shares a pipe can make it non-blocking for all.
TEST(WriteAll, WaitsForTheReaderOfANonBlockingPipe) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  posix::UniqueFd out(ends[0]);
  posix::UniqueFd in(ends[1]);
  ASSERT_EQ(::fcntl(in.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string text(1 << 20, 'x');
  std::size_t read = 0;
  std::thread reader([&] {
    std::string piece(100'000, ' ');
    ssize_t got = 1;
    while (got > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      got = ::read(out.get(), piece.data(), piece.size());
      if (got > 0) read += static_cast<std::size_t>(got);
    }
  });
  EXPECT_EQ(posix::write_all(in.get(), text), 0);
  in.reset();
  reader.join();
  EXPECT_EQ(read, text.size());
}

}  // namespace
}  // namespace tsprun::detail::posix_test
