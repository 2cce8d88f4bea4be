// Checks before ranks start whether this machine can do what --inter verbs and --rdma demand.
#pragma once

#include "launcher/options.h"

#include <string>

namespace tsprun::detail::launcher {

/// Returns why the ranks that this tsprun starts can't use RDMA as --inter verbs or --rdma demand; empty if they can, or if
/// nothing is demanded. Opens devices and closes them again.
std::string rdma_trouble(const GlobalOptions& options);

}  // namespace tsprun::detail::launcher
