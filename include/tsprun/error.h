// Causes of failure, and Error, the only exception that this library throws on purpose.
//
// An Error(refused) blames the call, and nothing has happened to the job. Any other Error is, as a rule, the first failure of the
// job, whichever rank caused it: all ranks throw the same one out of whatever they wait in, and every later call throws it again.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tsprun {

// X(enumerator = name in reports, explanation)
#define TSP_CAUSES(X)                                                                        \
  X(none, "nothing failed")                                                                  \
  X(killed, "the rank's process was ended by a signal")                                      \
  X(exited, "the rank's process ended before the job was done")                              \
  X(exception, "the rank ended by an exception that nobody caught")                          \
  X(stalled, "the rank gave no sign of life until the deadline")                             \
  X(deadlock, "ranks waited for each other in a circle until the deadline")                  \
  X(mismatch, "two ranks called different operations, or the same with different arguments") \
  X(corrupt, "bytes that arrived are damaged")                                               \
  X(disconnected, "the way to a rank is cut")                                                \
  X(out_of_memory, "a memory budget or the machine's memory is exhausted")                   \
  X(refused, "the request can't be served")                                                  \
  X(interrupted, "the job was ended from outside")                                           \
  X(failed, "the rank's program ended the job")

/// Causes of failure: the table above.
enum class Cause : std::uint8_t {
#define TSP_X(name, text) name,
  TSP_CAUSES(TSP_X)
#undef TSP_X
};

/// Returns the cause's name as the JSON report spells it ("out_of_memory").
std::string_view name(Cause cause);
/// Returns one clause that explains the cause.
std::string_view explanation(Cause cause);

/// A failure with its place. what() is the whole text, for people.
class Error : public std::runtime_error {
 public:
  Error(Cause cause, const std::string& message, int rank = -1, std::string op = {}, std::uint64_t sequence = 0)
      : std::runtime_error(message), cause_(cause), rank_(rank), op_(std::move(op)), sequence_(sequence) {}

  Cause cause() const { return cause_; }
  /// Returns the rank that caused it, in the world's numbering; -1 if unknown.
  int rank() const { return rank_; }
  /// Returns the operation that this rank was in, as name(Op) spells it; empty outside operations.
  const std::string& op() const { return op_; }
  /// Returns the number of that operation among those of its kind on its rank, from 1; 0 outside operations. It isn't
  /// TraceEvent::sequence, which counts the operations of a group on a stream.
  std::uint64_t sequence() const { return sequence_; }

 private:
  Cause cause_;
  int rank_;
  std::string op_;
  std::uint64_t sequence_;
};

}  // namespace tsprun
