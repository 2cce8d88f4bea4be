// Decides from failure and flight board which fault a job has noticed, and words what it missed.
#include "launcher/fault_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

namespace tsprun::detail::launcher {

using nlohmann::ordered_json;

namespace {

/// Returns true for faults that damage what is computed, or end it: a job that goes on normally has missed them.
bool must_be_detected(fault::Kind kind) {
  return kind != fault::Kind::stall && kind != fault::Kind::delay && kind != fault::Kind::slow;
}

/// Returns the rank that found damaged or unexpected bytes, from texts that begin "rank 2 is in all_gather"; -1: the text names
/// none.
int finder(const Failure& failure) {
  int rank = -1;
  int end = 0;
  return std::sscanf(failure.detail.c_str(), "rank %d is in %n", &rank, &end) == 1 && end > 0 ? rank : -1;
}

/// Returns true if the failure and the fault are in the same operation, or one of the operations isn't known.
bool same_operation(const Failure& failure, const FaultRecord& record) {
  return failure.op.empty() || record.op.empty() || (failure.op == record.op && failure.sequence == record.sequence);
}

/// Returns true if ranks may have waited until the deadline for a message that was lost at this place. The failure tells where
/// each rank on the way was.
bool waited_for(const Failure& failure, const FaultOutcome::Place& place) {
  const std::string receiver = fmt::format("rank {} is ", place.rank);
  if (failure.detail.find("; " + receiver) == std::string::npos && failure.detail.find(": " + receiver) == std::string::npos)
    return failure.rank == place.rank || failure.rank == place.record.peer;
  return place.record.op.empty() ||
         failure.detail.find(fmt::format("{}in {} #{} ", receiver, place.record.op, place.record.sequence)) != std::string::npos;
}

/// Returns true if a job ends with this failure when this message was damaged or lost.
bool comes_of(const Failure& failure, fault::Kind kind, const FaultOutcome::Place& place) {
  if (kind == fault::Kind::corrupt) {
    return failure.cause == Cause::corrupt && failure.rank == place.record.peer && same_operation(failure, place.record) &&
           (finder(failure) < 0 || finder(failure) == place.rank);
  }
  // The next message isn't the one that the receiver expects, or none comes until the deadline.
  if (failure.cause == Cause::mismatch) return failure.rank == place.rank && same_operation(failure, place.record);
  return (failure.cause == Cause::deadlock || failure.cause == Cause::stalled) && waited_for(failure, place);
}

/// Returns true if the job's failure, or the end of the struck rank, names the fault. A rank's end is on the board, even if
/// another rank failed first.
bool is_named_by(const Failure& failure, const FlightBoard& board, const FaultOutcome& outcome) {
  const fault::Spec& spec = outcome.spec;
  switch (spec.kind) {
    case fault::Kind::kill:
      return (failure.cause == Cause::killed && failure.rank == spec.rank) ||
             (board.life(spec.rank) == Life::killed && board.page(spec.rank).code.load(relaxed) == SIGKILL);
    case fault::Kind::stall: return failure.cause == Cause::stalled && failure.rank == spec.rank;
    case fault::Kind::oom:
      return (failure.cause == Cause::out_of_memory && failure.rank == spec.rank) ||
             board.first_error(spec.rank).detail.find(fmt::format("--fault {}", spec.text)) != std::string::npos;
    case fault::Kind::corrupt:
    case fault::Kind::drop:
      return std::any_of(outcome.places.begin(), outcome.places.end(),
                         [&](const FaultOutcome::Place& place) { return comes_of(failure, spec.kind, place); });
    case fault::Kind::disconnect: return failure.cause == Cause::disconnected && failure.rank == spec.from;
    case fault::Kind::delay:
    case fault::Kind::slow: break;
  }
  return false;
}

std::string place_of(const FaultOutcome::Place& place) {
  const FaultRecord& record = place.record;
  return fmt::format("at rank {}{}{}", place.rank,
                     record.op.empty() ? std::string() : fmt::format(" in {} #{}", record.op, record.sequence),
                     record.step == 0 ? std::string() : fmt::format(", step {}", record.step));
}

}  // namespace

std::vector<FaultOutcome> fault_outcomes(const std::vector<fault::Spec>& faults, const FlightBoard& board,
                                         const Failure& failure) {
  std::vector<FaultOutcome> outcomes;
  for (std::size_t i = 0; i < faults.size(); ++i)
    outcomes.push_back({.spec = faults[i], .times = board.fault_count(i), .places = {}, .detected = std::nullopt});
  for (int rank = 0; rank < board.ranks(); ++rank) {
    for (const FaultRecord& record : board.fault_records(rank)) {
      if (record.fault < outcomes.size()) outcomes[record.fault].places.push_back({rank, record});
    }
  }
  // One damaged or lost message is enough to end a job, so the effect of others is unknown.
  bool message_named = false;
  for (FaultOutcome& outcome : outcomes) {
    if (outcome.times == 0) continue;
    const bool of_message = outcome.spec.kind == fault::Kind::corrupt || outcome.spec.kind == fault::Kind::drop;
    const bool named = !(of_message && message_named) && is_named_by(failure, board, outcome);
    if (named && of_message) message_named = true;
    if (named || must_be_detected(outcome.spec.kind)) outcome.detected = named;
  }
  return outcomes;
}

ordered_json faults_json(const std::vector<FaultOutcome>& outcomes, std::uint64_t start_ns, const ordered_json& earlier) {
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const FaultOutcome& outcome = outcomes[i];
    std::uint64_t times = outcome.times;
    ordered_json where = ordered_json::array();
    ordered_json detected = outcome.detected ? ordered_json(*outcome.detected) : ordered_json(nullptr);
    if (earlier.is_array() && i < earlier.size()) {
      times += earlier[i].at("times").get<std::uint64_t>();
      where = earlier[i].at("where");
      if (detected.is_null() || earlier[i].at("detected") == true) detected = earlier[i].at("detected");
    }
    for (const auto& [rank, record] : outcome.places) {
      const bool outside = record.op.empty();
      where.push_back({{"rank", rank},
                       {"peer", record.peer >= 0 ? ordered_json(record.peer) : ordered_json(nullptr)},
                       {"op", outside ? ordered_json(nullptr) : ordered_json(record.op)},
                       {"seq", outside ? ordered_json(nullptr) : ordered_json(record.sequence)},
                       {"step", record.step == 0 ? ordered_json(nullptr) : ordered_json(record.step)},
                       {"seconds", record.when_ns < start_ns ? 0 : static_cast<double>(record.when_ns - start_ns) * 1e-9}});
    }
    list.push_back({{"fault", outcome.spec.text},
                    {"struck", times != 0},
                    {"times", times},
                    {"where", std::move(where)},
                    {"detected", std::move(detected)}});
  }
  return list;
}

std::vector<std::string> fault_warnings(const std::vector<FaultOutcome>& outcomes, std::uint64_t struck) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const FaultOutcome& outcome = outcomes[i];
    if (outcome.times == 0) {
      if ((struck >> i & 1) == 0)
        lines.push_back(fmt::format("--fault {}: not injected: the job ended before it was due", outcome.spec.text));
    } else if (outcome.detected == false) {
      std::string line = fmt::format("--fault {}: injected, not detected", outcome.spec.text);
      if (!outcome.places.empty()) line += ": " + place_of(outcome.places.front());
      if (outcome.spec.kind == fault::Kind::corrupt) line += "; --verify checks payloads";
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace tsprun::detail::launcher
