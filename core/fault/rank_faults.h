// Fault injection into a rank. Some faults hit the rank itself, once: at a training step or at an operation it is killed, stops
// responding for a while, or is refused memory. Others hit messages to it (message_faults.h). Every hit is recorded on the flight
// board, so that a restarted job doesn't suffer it again, and the first of each fault is reported in a line on stderr.
#pragma once

#include "core/board/flight_board.h"
#include "core/fault/message_faults.h"
#include "core/memory/heap.h"
#include "transport/fault/spec.h"
#include "transport/fault/strikes.h"
#include "tsprun/types.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// Faults of one rank and of messages to it; the engine tells it of every operation, the context of every training step.
class RankFaults {
 public:
  /// Selects the faults that hit world rank `rank` or messages to it from all faults of the job, in the order in which they were
  /// given. Faults of the rank itself, and those of messages that hit once, are left out if they struck in an earlier attempt:
  /// bit i of `struck` stands for faults[i]. `heap` and the board's memory must outlive it. Throws Error(refused) as
  /// check_faults().
  RankFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank, Heap& heap, const FlightBoard& board);

  RankFaults(const RankFaults&) = delete;
  RankFaults& operator=(const RankFaults&) = delete;

  /// Returns true if any fault is left that may strike here, or messages that this rank sends.
  bool any() const { return !waiting_.empty() || messages_.any() || !messages_.concerned().empty(); }
  /// Returns true if a fault of the job may strike single messages to this rank of the world.
  bool concern(int rank) const { return messages_.concerned().contains(rank); }
  /// Returns the faults of messages for the decorators around this rank's transports to carry out; null: there will be none.
  fault::Strikes* strikes() { return messages_.any() ? &messages_.strikes() : nullptr; }
  /// Tells that training step `step` (from 1) begins; faults that are due strike now.
  void at_step(std::uint64_t step);
  /// Tells that this rank's `sequence`-th operation of kind `op` (from 1) has come to the head of its stream; faults of the rank
  /// that are due strike now.
  void at_operation(Op op, std::uint64_t sequence);
  /// Tells that operation `number` of a stream is posted, the `sequence`-th of its kind. `members`: world ranks of its group.
  void at_post(Stream stream, std::uint64_t number, const OperationInfo& info, std::uint32_t sequence,
               std::span<const int> members);
  /// Tells that what the stream receives next belongs to operation `number`: that at its head, or on kTagged one of several.
  void at_begin(Stream stream, std::uint64_t number);
  /// Tells that on kTagged what comes next may belong to another operation than that of at_begin().
  void at_pause();
  /// Tells that operation `number` of a stream is complete.
  void at_end(Stream stream, std::uint64_t number);

 private:
  struct Fault {
    fault::Spec spec;
    std::size_t number;  // index in the job's list of faults
    Op op;               // valid if spec.op isn't empty
  };
  void strike_those(const std::function<bool(const Fault&)>& due);
  void strike(const Fault& fault);
  void stall(double seconds);
  void note_event(const fault::FaultEvent& event);
  void note(std::size_t fault, const FaultRecord& where, const std::string& what);

  struct Named {
    Op op = Op::barrier;
    std::uint32_t sequence = 0;
  };

  int rank_;
  Heap* heap_;
  FlightBoard board_;
  std::vector<std::string> texts_;  // all faults of the job as they were typed
  std::vector<Fault> waiting_;      // faults of the rank itself that haven't struck yet
  MessageFaults messages_;
  std::uint64_t step_ = 0;
  std::map<std::pair<Stream, std::uint64_t>, Named> posted_;  // operations that aren't complete
  std::array<std::uint64_t, kQueues> head_{};                 // numbers of the operations that receive; 0: none
  std::uint64_t said_ = 0;                                    // bit i: the line on stderr was written for fault i
};

/// Throws Error(refused) if a fault names an operation that doesn't exist, or if there are more than the board has room for.
void check_faults(std::span<const fault::Spec> faults);

}  // namespace tsprun::detail
