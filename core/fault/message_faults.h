// Fault injection into messages to this rank: decides which messages are hit. It counts logical messages, as the definitions of
// the operations prescribe them, in the order in which this rank posts the operations: an all_gather has one from each rank to
// each other, a broadcast one from the root to each, a reduce one from each to the root, a barrier none. So `nth`, and faults
// drawn by hash(seed, from, to, n), hit the same operations on every transport, whatever messages an algorithm really sends.
//
// If the algorithm sends a rank's part directly, that message is hit. If other ranks forward the part or sum it with theirs, the
// first message with a payload is hit that this rank receives in that operation.
#pragma once

#include "core/streams/engine.h"
#include "transport/fault/strikes.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// Faults of messages to one rank; the rank tells it of every operation.
class MessageFaults {
 public:
  /// Selects the faults that hit messages to world rank `rank` from all faults of the job. Faults that hit only once (`nth`,
  /// disconnect) are left out if they did so in an earlier attempt: bit i of `struck` stands for faults[i].
  MessageFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank);

  /// Returns true if any fault was selected.
  bool any() const { return !faults_.empty(); }
  /// Returns the faults that are due now; the decorators around this rank's transports carry them out.
  fault::Strikes& strikes() { return strikes_; }

  /// Tells that training step `step` begins. Cuts the connections that are due, and returns the indices of those faults.
  std::vector<std::size_t> at_step(std::uint64_t step);
  /// Tells that operation `number` (from 1) of a stream is posted. `members`: world ranks of its group.
  void at_post(Stream stream, std::uint64_t number, const OperationInfo& info, std::span<const int> members);
  /// Tells that what the stream receives next belongs to operation `number`: its faults are due.
  void at_begin(Stream stream, std::uint64_t number);
  /// Tells that what the stream receives next may belong to another operation than `number`, which goes on later.
  void at_pause(Stream stream, std::uint64_t number) { due_[{stream, number}] = strikes_.disarm(stream); }
  /// Tells that operation `number` is complete: its faults are due no more.
  void at_end(Stream stream, std::uint64_t number);
  /// Returns the ranks of the world to which a fault of the job may strike single messages.
  const std::set<int>& concerned() const { return concerned_; }

 private:
  struct Fault {
    fault::Spec spec;
    std::size_t number;
    std::uint64_t messages = 0;  // from spec.from to this rank so far
  };

  int rank_;
  std::vector<Fault> faults_;
  std::set<int> concerned_;  // ranks to which single messages may be struck
  fault::Strikes strikes_;
  std::map<std::pair<Stream, std::uint64_t>, std::vector<fault::Strike>> due_;  // by operation
};

/// Returns true if the definition of an operation prescribes a message between these two world ranks. `info` is the operation of
/// the receiving rank `to`, `members` the world ranks of its group.
bool prescribes_message(const OperationInfo& info, std::span<const int> members, int from, int to);

}  // namespace tsprun::detail
