// Tries whether transports work on this machine, for `doctor`.
#pragma once

#include "transport/factory.h"

#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Result of a trial.
struct Trial {
  bool possible = true;
  std::string why;  ///< what was done and how long it took, or what went wrong
};

/// Tries a kind of transport. `device`: as typed for its option; empty: the first usable device. Opens devices and closes them
/// again.
Trial try_transport(const Factory& kind, std::string_view device);

/// Returns why ranks of this machine can't talk over sockets; empty: they can.
std::string loopback_trouble();

}  // namespace tsprun::detail::launcher
