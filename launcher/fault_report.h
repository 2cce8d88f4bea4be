// Outcome of a job's --fault: how often each struck, when and where, and whether the job noticed it.
#pragma once

#include "core/board/flight_board.h"
#include "transport/fault/spec.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Outcome of one fault.
struct FaultOutcome {
  fault::Spec spec;
  std::uint64_t times = 0;  ///< how often it struck
  /// Place where the fault struck.
  struct Place {
    int rank;  ///< the rank that it struck, or the receiver of the message
    FaultRecord record;
  };
  std::vector<Place> places;  ///< the first places, at most kFaultLines per rank
  /// Result of detection: true if the job's failure, or the end of the rank that the fault struck, names it; of lost or damaged
  /// messages at most one fault is named. Empty: it didn't strike, or is of a kind that a job may survive unharmed (stall, delay,
  /// slow).
  std::optional<bool> detected;
};

/// Returns what became of each fault. `failure`: what ended the job; cause none: it succeeded.
std::vector<FaultOutcome> fault_outcomes(const std::vector<fault::Spec>& faults, const FlightBoard& board,
                                         const Failure& failure);

/// Returns the report's `faults`, an object for each: fault, struck, times, where [{rank, peer, op, seq, step, seconds}],
/// detected. `start_ns`: when the job began (posix::now_ns). `earlier`: the `faults` of earlier attempts of the same job, to
/// which this attempt's are added; null: none.
nlohmann::ordered_json faults_json(const std::vector<FaultOutcome>& outcomes, std::uint64_t start_ns,
                                   const nlohmann::ordered_json& earlier = nullptr);

/// Returns a line for each fault that did damage and wasn't noticed, or that never struck. `struck`: a bit for each fault that
/// struck in an earlier attempt.
std::vector<std::string> fault_warnings(const std::vector<FaultOutcome>& outcomes, std::uint64_t struck = 0);

}  // namespace tsprun::detail::launcher
