// Sees other local ranks die where no launcher does: one pidfd a rank, polled at every slow look.
#pragma once

#include "core/board/flight_board.h"
#include "transport/posix.h"

#include <vector>

namespace tsp {

class PeerWatch {
 public:
  /// `pids[i]`: process of local rank i, as the kernel reported it when the ranks met.
  PeerWatch(FlightBoard board, const std::vector<int>& pids);

  /// Writes Life::exited to the page of every rank whose process is gone and hadn't finished in good order.
  void look();

 private:
  FlightBoard board_;
  std::vector<posix::UniqueFd> processes_;  // by local rank; empty: already gone
};

}  // namespace tsp
