// What crossed the lanes of one transport of a rank.
#pragma once

#include "transport/transport.h"

#include <string_view>

namespace tsprun {

struct LinkTraffic {
  std::string_view transport;  ///< "shm", "verbs", "tcp"
  TrafficCounters counters;
};

}  // namespace tsprun
