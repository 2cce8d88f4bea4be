// What the library says unasked: little, and on stderr, for stdout is the program's.
#pragma once

#include <memory>

namespace spdlog {
class logger;
}

namespace tsprun {

/// The library's logger: "tsp", of level TSP_LOG_LEVEL (trace, debug, info, warn, error, critical, off), which tsprun sets for
/// the programs that it runs; info where that is unset or none of these.
spdlog::logger& logger();
/// Another in its place: tsprun's own. Before ranks start, by one thread.
void use_logger(std::shared_ptr<spdlog::logger> logger);

}  // namespace tsprun
