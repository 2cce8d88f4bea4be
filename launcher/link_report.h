// Speed of messages between each pair of ranks, and which pairs are much slower than the others.
#pragma once

#include "core/board/flight_board.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the report's `links`, an object for each pair with messages that were waited for: from, to, messages, bytes,
/// pending_seconds, fastest_gbps (10⁹ bytes per second).
nlohmann::ordered_json links_json(const FlightBoard& board);

/// Returns a line for each link that is much slower than the others, if there is evidence: many messages and bytes, all of them
/// slow, on their way for a good part of the job's `elapsed_ns`, and for longer than ranks waited for a core. `without_core_ns`:
/// how long each rank did (waited_for_core_ns(); 0 if unknown). At most four lines. If every link of a sender is slow, the sender
/// itself may be late: one line says so. Links of a rank that itself waits longer for another rank aren't named.
std::vector<std::string> link_warnings(const FlightBoard& board, std::uint64_t elapsed_ns,
                                       std::span<const std::uint64_t> without_core_ns);

}  // namespace tsprun::detail::launcher
