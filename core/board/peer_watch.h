// Sees other local ranks die or stop where no launcher does: one pidfd a rank, polled at every slow look; before ranks are called
// deadlocked, what the kernel says of their processes.
#pragma once

#include "core/board/flight_board.h"
#include "transport/posix.h"

#include <span>
#include <vector>

namespace tsprun {

class PeerWatch {
 public:
  /// `pids[i]`: process of local rank i, as the kernel reported it when the ranks met.
  PeerWatch(FlightBoard board, const std::vector<int>& pids);

  /// Writes Life::exited to the page of every rank whose process is gone and hadn't finished in good order.
  void look();
  /// Writes on their pages which of these ranks are stopped; true if any is.
  bool note_stopped(std::span<const int> ranks);

 private:
  FlightBoard board_;
  std::vector<int> pids_;                   // by local rank
  std::vector<posix::UniqueFd> processes_;  // by local rank; empty: already gone
};

}  // namespace tsprun
