// Which signals the calling thread has blocked.
#pragma once

#include <csignal>

namespace tsprun::detail::test {

inline bool blocks(int signal) {
  sigset_t mask;
  ::sigemptyset(&mask);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return ::sigismember(&mask, signal) == 1;
}

}  // namespace tsprun::detail::test
