// What reading tsprun's own signals leaves behind in its process: nothing.
#include "launcher/signals.h"

#include <gtest/gtest.h>

#include <csignal>

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

}  // namespace
}  // namespace tsprun::detail::launcher::signal_reader_test
