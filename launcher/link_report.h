// How fast messages went from rank to rank, by pair, and which pairs are much slower than the others.
#pragma once

#include "core/board/flight_board.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// The report's `links`, an object for each pair with messages that were waited for: from, to, messages, bytes, pending_seconds,
/// fastest_gbps (10⁹ bytes per second).
nlohmann::ordered_json links_json(const FlightBoard& board);

/// A line for each link that is much slower than the others, where there is evidence: many messages and bytes, all of them slow,
/// on their way for a good part of the job's `elapsed_ns`, and for longer than ranks stood in line for a core. `without_core_ns`:
/// how long each rank did (waited_for_core_ns(); 0 where nobody knows). At most four lines. Where every link of a sender is slow
/// it may be the sender that is late: one line says so. Links of a rank that itself waits longer for another's aren't named.
std::vector<std::string> link_warnings(const FlightBoard& board, std::uint64_t elapsed_ns,
                                       std::span<const std::uint64_t> without_core_ns);

}  // namespace tsprun::launcher
