// The report of `doctor` on RDMA: devices, ports, GIDs, the self-test, and which transport ranks would use.
#pragma once

#include "launcher/options.h"
#include "launcher/transport_trial.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Findings about RDMA on this machine.
struct RdmaFindings {
  Trial verbs;  ///< result of the loopback self-test
  std::vector<std::string> lines;
  nlohmann::ordered_json json;
};
/// Looks at all RDMA devices and runs the self-test. Throws Error(refused) if --rdma names a device that doesn't exist or can't
/// be used.
RdmaFindings find_rdma(const GlobalOptions& options);

/// One row of the table "why this transport".
struct WayRow {
  std::string between;
  std::string kind;  ///< "shm", "verbs", "tcp", "none"
  std::string why;
};
/// Returns which transports ranks would use under these options, judged by the trials on this machine.
std::vector<WayRow> likely_ways(const GlobalOptions& options, const Trial& shm, const Trial& verbs, const Trial& tcp);

}  // namespace tsprun::detail::launcher
