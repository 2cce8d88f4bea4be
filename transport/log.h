// The library's log. It goes to stderr, because stdout belongs to the program.
#pragma once

#include <memory>

namespace spdlog {
class logger;
}

namespace tsprun::detail {

/// Returns the library's logger, "tsp". Its level is TSP_LOG_LEVEL (trace, debug, info, warn, error, critical, off), which
/// tsprun sets for the programs that it runs; info if that is unset or none of these.
spdlog::logger& logger();
/// Replaces the library's logger; tsprun sets its own. Call it before ranks start, from one thread.
void use_logger(std::shared_ptr<spdlog::logger> logger);

}  // namespace tsprun::detail
