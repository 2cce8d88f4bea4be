// Injected faults of messages to this rank: which of them are struck. Counted are the messages that the definitions of operations
// prescribe, in the order in which this rank posts the operations: an all_gather has one from each rank to each other, a
// broadcast one from the root to each, a reduce one from each to the root, a barrier none. So `nth`, and what is drawn by
// hash(seed, from, to, n), mean the same operations on every transport, whatever messages an algorithm makes of them.
//
// Where an algorithm sends a rank's part directly, its message is struck; where others pass it on, or sum it with theirs, the
// first message with a payload that this rank gets in that operation.
#pragma once

#include "core/streams/engine.h"
#include "transport/fault/strikes.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tsprun {

class MessageFaults {
 public:
  /// Of all the job's faults those that strike messages to `rank`; without those that strike once and did so in an earlier
  /// attempt: `struck` has a bit for each.
  MessageFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank);

  bool any() const { return !faults_.empty(); }
  /// What the decorators around this rank's transports carry out.
  fault::Strikes& strikes() { return strikes_; }

  /// A training step begins: the numbers of the faults that cut a way then.
  std::vector<std::size_t> at_step(std::uint64_t step);
  /// The number-th operation of a stream is posted, by these ranks of the world.
  void at_post(Stream stream, std::uint64_t number, const OperationInfo& info, std::span<const int> members);
  /// It comes to the head of its stream; it is over.
  void at_begin(Stream stream, std::uint64_t number);
  void at_end(Stream stream) { strikes_.disarm(stream); }

 private:
  struct Fault {
    fault::Spec spec;
    std::size_t number;
    std::uint64_t messages = 0;  // of the pair so far
  };

  int rank_;
  std::vector<Fault> faults_;
  fault::Strikes strikes_;
  std::map<std::pair<Stream, std::uint64_t>, std::vector<fault::Strike>> due_;  // by operation
};

/// Whether the definition of an operation prescribes a message between these two ranks of the world. `members`: of its group.
/// Judged by the receiving rank, whose operation it is.
bool prescribes_message(const OperationInfo& info, std::span<const int> members, int from, int to);

}  // namespace tsprun
