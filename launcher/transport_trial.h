// Tries whether a transport works on this machine: two ends in this process connect, and one sends the other 1 MiB. `doctor`
// reports the result for verbs and tcp.
#pragma once

#include <string>

namespace tsprun::detail::launcher {

/// Result of a trial.
struct Trial {
  bool possible = true;
  std::string why;  ///< what was done and how long it took, or what went wrong
};

/// Tries RDMA verbs. `device`: as for --rdma; empty: the first usable device. Opens devices and closes them again.
Trial try_verbs(const std::string& device);
/// Tries TCP over the loopback interface.
Trial try_tcp();

/// Returns why ranks of this machine can't talk over sockets; empty: they can.
std::string loopback_trouble();

}  // namespace tsprun::detail::launcher
