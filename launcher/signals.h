// Reads tsprun's own signals through a descriptor, so that the event loop treats them as one kind of event.
#pragma once

#include "transport/posix.h"

#include <array>
#include <csignal>
#include <cstdint>
#include <optional>

namespace tsprun::detail::launcher {

/// Signals that ask a job to end.
inline constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
/// Signals that ask for the flight board, or that a scheduler sends when the job's time is nearly up. They end nothing.
inline constexpr std::array kAskingSignals{SIGUSR1, SIGUSR2};
/// Returns true for one of kEndingSignals.
bool asks_to_end(int signal);

/// Longest time between ending signals that are one request: at a time limit Slurm's slurmstepd and srun each send SIGTERM, some
/// 30 ms apart; systemd sends SIGHUP after SIGTERM; `timeout` signals its child and then the child's process group.
inline constexpr std::uint64_t kOneRequest_ns = 1'000'000'000;

/// The request to end, made by a signal and perhaps by others that come with it.
class EndingRequest {
 public:
  /// Takes an ending signal that came at `now_ns` (posix::now_ns). Returns true if it is a request of its own, false if it
  /// belongs to one that was made up to kOneRequest_ns before.
  bool take(int signal, std::uint64_t now_ns);
  /// Returns the signal of the last request; 0: there was none.
  int signal() const { return signal_; }
  /// Returns when that request was made, as take() was told.
  std::uint64_t when_ns() const { return when_ns_; }

 private:
  int signal_ = 0;
  std::uint64_t when_ns_ = 0;
};

/// Makes this process outlive the ending signals that still belong to a request: they are ignored until kOneRequest_ns after it,
/// and then have their default action. To be called when no SignalReader will read them any more.
void outlive(const EndingRequest& request);

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
