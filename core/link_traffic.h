// Traffic counters of one transport of a rank.
#pragma once

#include "transport/endpoint.h"

#include <string_view>

namespace tsprun {

/// Bytes that one rank sent and received over one transport.
struct LinkTraffic {
  std::string_view transport;  ///< "shm", "verbs", "tcp"
  TrafficCounters counters;
};

}  // namespace tsprun
