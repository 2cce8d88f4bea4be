// Does a transport work on this machine? Two ends in this process connect and one sends the other a MiB: what `doctor` says of
// verbs and tcp.
#pragma once

#include <string>

namespace tsprun::launcher {

struct Trial {
  bool possible = true;
  std::string why;  ///< what was done and how long it took, or what went wrong
};

/// `device`: as --rdma says; empty: the first usable one. Opens devices and closes them again.
Trial try_verbs(const std::string& device);
/// Over the loopback interface.
Trial try_tcp();

/// Why ranks of this machine can't talk over sockets; empty: they can.
std::string loopback_trouble();

}  // namespace tsprun::launcher
