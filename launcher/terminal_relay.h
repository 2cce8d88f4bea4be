// Passes a terminal's input to rank 0.
//
// A rank is the leader of its own process group, so a terminal would stop it (SIGTTIN) when it reads. tsprun, which is in the
// foreground, reads instead and passes bytes on through a pipe. Anything but a terminal is simply inherited.
#pragma once

#include "transport/posix.h"

#include <string>

namespace tsprun::launcher {

class TerminalRelay {
 public:
  /// Makes the pipe if stdin is a terminal.
  TerminalRelay();

  /// What rank 0 shall have as stdin.
  int rank_end() const { return relaying_ ? read_end_.get() : 0; }
  /// After rank 0 was started: gives up tsprun's copy of the rank's end.
  void started() { read_end_.reset(); }
  /// True if the terminal may be read now: tsprun is in its foreground and earlier input was passed on.
  bool wants_input() const;
  /// Reads what was typed and passes it on. At end of input, or when nobody reads any more, the pipe is closed.
  void pump();
  /// Tries again to pass on what the pipe had no room for.
  void push();

 private:
  bool relaying_ = false;
  posix::UniqueFd read_end_;
  posix::UniqueFd write_end_;
  std::string pending_;
};

}  // namespace tsprun::launcher
