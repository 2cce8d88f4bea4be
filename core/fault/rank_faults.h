// Injected faults of a rank. Some strike the rank itself: at a training step or at an operation it dies, gives no sign of life
// for a while, or is refused memory, each once. Others strike messages to it (message_faults.h). That one struck, when and where,
// stands on the flight board, so that an attempt that follows isn't struck again, and a line on stderr says it.
#pragma once

#include "core/board/flight_board.h"
#include "core/collectives/op.h"
#include "core/fault/message_faults.h"
#include "core/memory/heap.h"
#include "transport/fault/spec.h"
#include "transport/fault/strikes.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tsprun {

class RankFaults {
 public:
  /// Of all the job's faults, in the order in which they were given, those that strike `rank` or messages to it, but for those
  /// that struck in an earlier attempt: `struck` has a bit for each. Heap and board are borrowed. Throws Error(refused) as
  /// check_faults().
  RankFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank, Heap& heap, const FlightBoard& board);

  RankFaults(const RankFaults&) = delete;
  RankFaults& operator=(const RankFaults&) = delete;

  bool any() const { return !waiting_.empty() || messages_.any(); }
  /// What decorators around this rank's transports carry out; null: nothing ever.
  fault::Strikes* strikes() { return messages_.any() ? &messages_.strikes() : nullptr; }
  /// A training step begins, from 1.
  void at_step(std::uint64_t step);
  /// The rank's `sequence`-th operation of this kind begins: it has come to the head of its stream.
  void at_operation(Op op, std::uint64_t sequence);
  /// The number-th operation of a stream is posted, the `sequence`-th of its kind, by these ranks of the world.
  void at_post(Stream stream, std::uint64_t number, const OperationInfo& info, std::uint32_t sequence,
               std::span<const int> members);
  /// It comes to the head of its stream; it is over.
  void at_begin(Stream stream, std::uint64_t number);
  void at_end(Stream stream);

 private:
  struct Fault {
    fault::Spec spec;
    std::size_t number;  // among all of the job
    Op op;               // meaningful with spec.op
  };
  void strike_those(const std::function<bool(const Fault&)>& due);
  void strike(const Fault& fault);
  void stall(double seconds);
  void note_blow(const fault::Blow& blow);
  void note(std::size_t fault, const FaultRecord& where, const std::string& what);

  struct Named {
    Op op = Op::barrier;
    std::uint32_t sequence = 0;
  };

  int rank_;
  Heap* heap_;
  FlightBoard board_;
  std::vector<std::string> texts_;  // of all the job's faults
  std::vector<Fault> waiting_;      // of those that strike the rank itself, those that haven't
  MessageFaults messages_;
  std::uint64_t step_ = 0;
  std::map<std::pair<Stream, std::uint64_t>, Named> posted_;  // operations that aren't over
  std::array<std::uint64_t, kStreams> head_{};                // numbers of those at the heads; 0: none
  std::uint64_t said_ = 0;                                    // a bit for each fault that a line was written of
};

/// Throws Error(refused) if a fault names an operation that doesn't exist, or if there are more than the board has room for.
void check_faults(std::span<const fault::Spec> faults);

}  // namespace tsprun
