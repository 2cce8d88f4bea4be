// What reading tsprun's own signals leaves behind in its process: nothing.
#include "launcher/signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::launcher::signal_reader_test {
namespace {

using Handler = void (*)(int);

Handler disposition(int signal) {
  struct sigaction now {};
  ::sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

TEST(SignalReader, LeavesDispositionsAndMaskAsTheyWere) {
  const Handler child = std::signal(SIGCHLD, SIG_IGN);
  const Handler pipe = std::signal(SIGPIPE, SIG_DFL);
  sigset_t before;
  ::sigprocmask(SIG_SETMASK, nullptr, &before);
  {
    const SignalReader reader;
    EXPECT_EQ(disposition(SIGCHLD), SIG_DFL);
    EXPECT_EQ(disposition(SIGPIPE), SIG_IGN);
  }
  EXPECT_EQ(disposition(SIGCHLD), SIG_IGN);
  EXPECT_EQ(disposition(SIGPIPE), SIG_DFL);
  sigset_t after;
  ::sigprocmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) EXPECT_EQ(::sigismember(&after, signal), ::sigismember(&before, signal));
  std::signal(SIGCHLD, child);
  std::signal(SIGPIPE, pipe);
}

TEST(EndingRequest, IsOneForAllSignalsThatComeTogether) {
  EndingRequest request;
  EXPECT_EQ(request.signal(), 0);
  const std::uint64_t now = 5 * kOneRequest_ns;
  EXPECT_TRUE(request.take(SIGTERM, now));
  EXPECT_FALSE(request.take(SIGTERM, now + 30'000'000));
  EXPECT_FALSE(request.take(SIGHUP, now + kOneRequest_ns - 1));
  EXPECT_EQ(request.signal(), SIGTERM);
  EXPECT_EQ(request.when_ns(), now);
  EXPECT_TRUE(request.take(SIGINT, now + kOneRequest_ns)) << "counted from the first, not from the last";
  EXPECT_EQ(request.signal(), SIGINT);
}

/// Ends a forked child, which has outlived a request of that age, by a signal; returns the child's status.
int end_after_request(std::uint64_t age_ns) {
  const pid_t child = ::fork();
  if (child == 0) {
    EndingRequest request;
    request.take(SIGTERM, posix::now_ns() - age_ns);
    outlive(request);
    ::raise(SIGTERM);
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(EndingRequest, IsOutlivedAsLongAsItsSignalsMayCome) {
  const int early = end_after_request(0);
  EXPECT_TRUE(WIFEXITED(early) && WEXITSTATUS(early) == 7) << early;
  const int late = end_after_request(kOneRequest_ns);
  EXPECT_TRUE(WIFSIGNALED(late) && WTERMSIG(late) == SIGTERM) << late;
}

}  // namespace
}  // namespace tsprun::detail::launcher::signal_reader_test
