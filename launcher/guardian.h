// The small parent of a user's program under `run`: what makes a rank out of a program that knows nothing of tsprun.
//
//   tsprun ── guardian (the rank: group leader, subreaper) ── the program ── whatever it starts
//
// The guardian does nothing but wait. When the program ends it kills what the program left behind and ends the same way (same
// exit code or signal). When tsprun ends (its pidfd says so, even after SIGKILL) it kills everything below. If the guardian
// itself is killed, the program dies by its own parent-death signal, the rest of the group by tsprun. So that `pkill -9 tsprun`
// doesn't kill both at once, and with them all who could end the rest, the guardian goes by a name of its own: tsp-guardian.
#pragma once

#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace tsprun::launcher {

struct GuardedProgram {
  std::vector<std::string> arguments;                            ///< the program first
  std::vector<std::pair<std::string, std::string>> environment;  ///< set on top of the inherited one
  std::vector<int> inherited;                                    ///< descriptors that the program gets
  int launcher_pidfd = -1;
  pid_t launcher_group = 0;  ///< process group of tsprun
  int rank = 0;
};

/// Runs in the forked rank, whose standard descriptors are those that the program shall have. Never returns.
[[noreturn]] void guard_program(const GuardedProgram& program);

}  // namespace tsprun::launcher
