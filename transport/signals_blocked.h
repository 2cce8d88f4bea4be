// Threads of the library's own don't take signals that are sent to the process: a program may handle them, and wants its own
// threads to be interrupted by them.
#pragma once

#include <csignal>
#include <initializer_list>

namespace tsprun::detail {

/// Blocks signals on the calling thread, so that threads started meanwhile begin with them blocked, and gives the thread its own
/// mask back in the end. Signals that a thread raises by a fault of its own stay as they are, since a program's handler is to see
/// them, and so does SIGPROF, by which profilers look at all threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    ::sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) ::sigdelset(&blocked, fault);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace tsprun::detail
