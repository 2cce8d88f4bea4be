// Detects that other ranks of the node died or were stopped, for jobs without a tsprun launcher (torchrun, srun). It polls one
// pidfd per rank (pidfd_open(2)), and asks the kernel which processes are stopped before ranks are declared deadlocked.
#pragma once

#include "core/board/flight_board.h"
#include "transport/posix.h"

#include <poll.h>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Watches the processes of all ranks of a node.
class PeerWatch {
 public:
  /// Opens a pidfd for each rank. `pids[i]`: process id of local rank i, as the kernel reported it when the ranks met; `first`:
  /// its rank in the world if i is 0. Throws Error(refused) if a pidfd can't be opened.
  PeerWatch(FlightBoard board, int first, const std::vector<int>& pids);

  /// Marks every rank over whose process is gone, and Life::exited if it had not marked itself finished.
  void look();
  /// Writes to the pages of those of these ranks that are on this node whether their processes are stopped (SIGSTOP, a debugger);
  /// returns true if any is.
  bool note_stopped(std::span<const int> ranks);
  /// Adds to `watched` what becomes readable when the process of a rank ends that hasn't left the job.
  void add_living(std::vector<pollfd>& watched) const;
  /// Returns the node's first rank, which carries the news of other nodes (courier.h).
  int first() const { return first_; }

 private:
  FlightBoard board_;
  int first_;
  std::vector<int> pids_;                   // by local rank
  std::vector<posix::UniqueFd> processes_;  // pidfds by local rank; invalid: the process was gone already
};

}  // namespace tsprun::detail
