// What of --inter verbs and --rdma this machine can't do: found before ranks start.
#pragma once

#include "launcher/options.h"

#include <string>

namespace tsprun::launcher {

/// Why the ranks that this tsprun starts can't use RDMA as --inter verbs or --rdma demand; empty if they can, or if nothing is
/// demanded. Opens devices and closes them again.
std::string rdma_trouble(const GlobalOptions& options);

}  // namespace tsprun::launcher
