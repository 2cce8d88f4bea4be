// The guardian: the small parent process of a user's program under `run`. It makes a rank out of a program that knows nothing of
// tsprun.
//
//   tsprun ── guardian (the rank: group leader, subreaper) ── the program ── whatever it starts
//
// The guardian only waits. When the program ends, it kills what the program left behind and ends in the same way, with the same
// exit code or signal. When tsprun ends, even by SIGKILL, tsprun's pidfd tells the guardian, which then kills everything below
// it. If the guardian itself is killed, the program dies by its parent-death signal and the rest of the group is killed by
// tsprun. The guardian's process is named tsp-guardian, so that `pkill -9 tsprun` doesn't kill it together with tsprun.
#pragma once

#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

/// Arguments of guard_program().
struct GuardedProgram {
  std::vector<std::string> arguments;                            ///< the program and its arguments
  std::vector<std::pair<std::string, std::string>> environment;  ///< variables set on top of the inherited ones
  std::vector<int> inherited;                                    ///< descriptors that the program inherits
  int launcher_pidfd = -1;
  pid_t launcher_group = 0;  ///< process group of tsprun
  int rank = 0;
};

/// Becomes the guardian of a program. Called in the forked rank, whose standard descriptors are those that the program shall
/// have. Never returns.
[[noreturn]] void guard_program(const GuardedProgram& program);

}  // namespace tsprun::detail::launcher
