// Passes a terminal's input to rank 0.
//
// A rank is the leader of its own process group, so the terminal would stop it (SIGTTIN) when it reads. tsprun, which is in the
// foreground, reads instead and passes the bytes on through a pipe. Input that isn't a terminal is inherited by rank 0.
#pragma once

#include "transport/posix.h"

#include <string>

namespace tsprun::detail::launcher {

/// The relay between tsprun's stdin and rank 0.
class TerminalRelay {
 public:
  /// Makes the pipe if stdin is a terminal. Throws Error(refused).
  TerminalRelay();

  /// Returns the descriptor that rank 0 gets as stdin.
  int rank_end() const { return relaying_ ? read_end_.get() : 0; }
  /// Closes tsprun's copy of the rank's end. Call after rank 0 was started.
  void started() { read_end_.reset(); }
  /// Returns true if the terminal may be read now: tsprun is in its foreground, and earlier input was passed on.
  bool wants_input() const;
  /// Reads what was typed and passes it on. Closes the pipe at the end of input, or when rank 0 no longer reads.
  void pump();
  /// Tries again to pass on what the pipe had no room for.
  void push();

 private:
  bool relaying_ = false;
  posix::UniqueFd read_end_;
  posix::UniqueFd write_end_;
  std::string pending_;
};

}  // namespace tsprun::detail::launcher
