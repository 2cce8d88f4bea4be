// One rank as tsprun sees it: a child process, its pidfd, and the pipes through which its output comes.
#pragma once

#include "launcher/output.h"
#include "launcher/rank_traces.h"
#include "launcher/report_sink.h"
#include "launcher/silence.h"
#include "launcher/supervisor.h"
#include "transport/posix.h"
#include "transport/shm/node_memory.h"

#include <sched.h>
#include <string>
#include <sys/resource.h>
#include <sys/types.h>

namespace tsprun::detail::launcher {

/// Arguments of start_rank().
struct StartPlan {
  const JobSpec* spec = nullptr;
  shm::NodeMemory* memory = nullptr;  ///< memory of the rank's node; to be set anew for every rank
  const cpu_set_t* cores = nullptr;   ///< to which the rank is pinned; null: it isn't
  std::string master_address;
  int launcher_pidfd = -1;
  pid_t launcher = 0;
  int master_port = 0;
  int stdin_for_rank_0 = -1;           ///< -1: /dev/null
  rlimit open_files{};                 ///< limit as tsprun found it, for programs that don't expect a raised one
  const RankTraces* traces = nullptr;  ///< where a program's ranks leave their traces; null: nowhere
  std::uint64_t start_ns = 0;          ///< when the job started, by posix::now_ns()
};

/// A running rank.
struct RankProcess {
  pid_t pid = 0;
  posix::UniqueFd pidfd;
  LineRelay out;
  LineRelay err;
  posix::UniqueFd results;  ///< rank 0 of a built-in command: frames (report_sink.h)
  pid_t program = 0;        ///< under `run`: the guardian's child, once it is known; else 0
  Silence silence;          ///< how long the process that does the rank's work has been silent
  char state = '?';         ///< its state at the last look
};

/// Forks one rank. The caller must have one thread, and must have blocked the signals that it reads through a descriptor. Throws
/// Error(refused) if the system has no process, pipe or descriptor left.
RankProcess start_rank(const StartPlan& plan, int rank);

/// Descriptors that tsprun opens now and then while ranks run.
inline constexpr int kDescriptorsOfAJob = 8;
/// Returns how many descriptors it takes at most to start so many ranks: of each a pidfd, a bell and two pipes, and its node's
/// memory; those of a job, once for what starts it and once for what it opens then.
constexpr int descriptors_of_a_start(int ranks) { return 5 * ranks + 2 * kDescriptorsOfAJob; }

/// Returns a TCP port of the loopback interface that no process uses at present. Throws Error(refused).
int free_port();

}  // namespace tsprun::detail::launcher
