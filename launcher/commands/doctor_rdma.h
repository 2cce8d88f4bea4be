// What `doctor` says of RDMA: devices, ports, GIDs, the self-test, and which transport ranks would use.
#pragma once

#include "launcher/options.h"
#include "launcher/transport_trial.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::launcher {

/// What stands before the table of ways, and its keys `rdma`.
struct RdmaFindings {
  Trial verbs;  ///< the loopback self-test
  std::vector<std::string> lines;
  nlohmann::ordered_json json;
};
/// Throws Error(refused) if --rdma names what there isn't.
RdmaFindings find_rdma(const GlobalOptions& options);

/// A row of "why this transport".
struct WayRow {
  std::string between;
  std::string kind;  ///< "shm", "verbs", "tcp", "none"
  std::string why;
};
/// What ranks would use under these options, by what was tried here.
std::vector<WayRow> likely_ways(const GlobalOptions& options, const Trial& shm, const Trial& verbs, const Trial& tcp);

}  // namespace tsprun::launcher
