// What became of a job's --fault: how often each struck, when and where, and whether anybody noticed.
#pragma once

#include "core/board/flight_board.h"
#include "transport/fault/spec.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::launcher {

struct FaultOutcome {
  fault::Spec spec;
  std::uint64_t times = 0;  ///< that it struck
  struct Place {
    int rank;  ///< whom, or the receiver of the message
    FaultRecord record;
  };
  std::vector<Place> places;  ///< the first of them, kFaultLines of a rank
  /// Whether the job's failure, or the end of the rank that it struck, names it; one lost or damaged message at most is. None: it
  /// didn't strike, or is of a kind that a job may survive unharmed (stall, delay, slow).
  std::optional<bool> detected;
};

/// `failure`: what the job ended of; cause none: it succeeded.
std::vector<FaultOutcome> fault_outcomes(const std::vector<fault::Spec>& faults, const FlightBoard& board,
                                         const Failure& failure);

/// The report's `faults`, an object each: fault, struck, times, where [{rank, peer, op, seq, step, seconds}], detected.
/// `start_ns`: when the job began. `earlier`: those of an earlier attempt of the same job, to which this one's are added; null:
/// none.
nlohmann::ordered_json faults_json(const std::vector<FaultOutcome>& outcomes, std::uint64_t start_ns,
                                   const nlohmann::ordered_json& earlier = nullptr);

/// A line for each fault that did damage and wasn't noticed, or never struck; `struck` has a bit for each that did in an earlier
/// attempt.
std::vector<std::string> fault_warnings(const std::vector<FaultOutcome>& outcomes, std::uint64_t struck = 0);

}  // namespace tsprun::launcher
