// How fast messages went from rank to rank, by pair, and which pairs are much slower than the others.
#pragma once

#include "core/board/flight_board.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tsp::launcher {

/// The report's `links`, an object for each pair with messages that were waited for: from, to, messages, bytes, pending_seconds,
/// fastest_gbps (10⁹ bytes per second).
nlohmann::ordered_json links_json(const FlightBoard& board);

/// A line for each link whose fastest message was much slower than those of the others, and that had messages on their way for a
/// good part of the job's `elapsed_ns`; at most four. Where every link of a sender is slow it may be the sender that is late: one
/// line says so. Links of a rank that itself waits longer for another's aren't named.
std::vector<std::string> link_warnings(const FlightBoard& board, std::uint64_t elapsed_ns);

}  // namespace tsp::launcher
