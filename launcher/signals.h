// Reads tsprun's own signals through a descriptor, so that the event loop treats them as one kind of event.
#pragma once

#include "transport/posix.h"

#include <array>
#include <csignal>
#include <optional>

namespace tsprun::detail::launcher {

/// Signals that ask a job to end.
inline constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
/// Signals that ask for the flight board, or that a scheduler sends when the job's time is nearly up. They end nothing.
inline constexpr std::array kAskingSignals{SIGUSR1, SIGUSR2};
/// Returns true for one of kEndingSignals.
bool asks_to_end(int signal);

/// Keeps a signal that asked for the end of a job that was over: what is left, such as the report, is written first.
void keep_late_signal(int signal);
/// Returns the signal that was kept; 0: none.
int late_signal();
/// Ends this process by the signal that was kept, as it would have without that; returns if there is none.
void end_by_late_signal();

/// Blocks SIGINT, SIGTERM, SIGHUP (unless ignored, as under nohup), SIGQUIT, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2 and SIGCHLD while
/// it lives, so that they are read from here, ignores SIGPIPE, and takes SIGCHLD by default. The destructor restores the mask and
/// both dispositions.
class SignalReader {
 public:
  SignalReader();
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;
  ~SignalReader();

  int descriptor() const { return descriptor_.get(); }
  /// Returns the next signal that has arrived; empty if none has.
  std::optional<int> next() const;
  /// Returns the next signal, waiting at most `milliseconds` for it.
  std::optional<int> next_within(int milliseconds) const;

 private:
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
  posix::UniqueFd descriptor_;
};

}  // namespace tsprun::detail::launcher
