// One rank as tsprun sees it: a child process, a handle on it, and the pipes that its output comes through.
#pragma once

#include "launcher/output.h"
#include "launcher/report_sink.h"
#include "launcher/silence.h"
#include "launcher/supervisor.h"
#include "transport/posix.h"
#include "transport/shm/node_memory.h"

#include <string>
#include <sys/resource.h>
#include <sys/types.h>

namespace tsprun::launcher {

/// What all ranks of a job are started with.
struct StartPlan {
  const JobSpec* spec = nullptr;
  shm::NodeMemory* memory = nullptr;  ///< of the node that the rank is on; the plan is made anew for every rank
  int place_here = 0;                 ///< among the ranks of this tsprun: which cores it is pinned to
  std::string master_address;
  std::string store;
  int launcher_pidfd = -1;
  pid_t launcher = 0;
  int master_port = 0;
  int stdin_for_rank_0 = -1;  ///< -1: /dev/null
  rlimit open_files{};        ///< as tsprun found it, for programs that don't expect it raised
  bool bind = false;
};

struct RankProcess {
  pid_t pid = 0;
  posix::UniqueFd pidfd;
  LineRelay out;
  LineRelay err;
  posix::UniqueFd results;  ///< rank 0 of a built-in command: frames (report_sink.h)
  pid_t program = 0;        ///< under `run`, once it is known: the guardian's child
  Silence silence;          ///< of the process that does the rank's work
  char state = '?';         ///< its state at the last look
};

/// Forks one rank. The caller has blocked the signals that it reads through a descriptor, and has one thread.
/// Throws Error(refused) if the system has no process, pipe or descriptor left.
RankProcess start_rank(const StartPlan& plan, int rank);

/// A TCP port of the loopback interface that nobody uses at present.
int free_port();

}  // namespace tsprun::launcher
