// tsprun's own signals, read through a descriptor so that they are one kind of event among others.
#pragma once

#include "transport/posix.h"

#include <array>
#include <csignal>
#include <optional>

namespace tsprun::launcher {

/// Signals that ask a job to end.
inline constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
/// Signals that ask how a job does, or tell it that its time is nearly up: they end nothing.
inline constexpr std::array kAskingSignals{SIGUSR1, SIGUSR2};
bool asks_to_end(int signal);

/// While it lives: SIGINT, SIGTERM, SIGHUP (unless ignored, as under nohup), SIGQUIT, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2 and
/// SIGCHLD are blocked and read from here, and SIGPIPE is ignored. What was before is restored.
class SignalReader {
 public:
  SignalReader();
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;
  ~SignalReader();

  int descriptor() const { return descriptor_.get(); }
  /// The next signal that has arrived; none if there is none.
  std::optional<int> next() const;
  /// Waits for the next one.
  std::optional<int> next_within(int milliseconds) const;

 private:
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  posix::UniqueFd descriptor_;
};

}  // namespace tsprun::launcher
