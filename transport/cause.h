// Why something failed. One table yields the enum, the names that reports use and their explanations. Error is the exception
// that crosses room boundaries; core's flight board keeps the same facts as plain data (struct Failure).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

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
  X(interrupted, "the job was ended from outside")

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
/// Returns false if no cause has this number (which may come from shared memory or a packet).
bool is_cause(std::uint8_t value);

/// A failure with its place. `rank` is the rank that caused it, in the world's numbering, -1 if unknown. Outside an operation
/// `op` is empty and `sequence` 0.
class Error : public std::runtime_error {
 public:
  Error(Cause cause, const std::string& message, int rank = -1, std::string op = {}, std::uint64_t sequence = 0)
      : std::runtime_error(message), cause_(cause), rank_(rank), op_(std::move(op)), sequence_(sequence) {}

  Cause cause() const { return cause_; }
  int rank() const { return rank_; }
  const std::string& op() const { return op_; }
  std::uint64_t sequence() const { return sequence_; }

 private:
  Cause cause_;
  int rank_;
  std::string op_;
  std::uint64_t sequence_;
};

/// Returns an Error of the given cause with the message "what: strerror(errno_value)".
Error system_error(Cause cause, const std::string& what, int errno_value);

}  // namespace tsprun
