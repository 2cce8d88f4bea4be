// Injected faults that strike a rank itself: at a training step or at an operation it dies, gives no sign of life for a while, or
// is refused memory. Each strikes once; that it did stands on the flight board, so that an attempt that follows isn't struck
// again, and one line on stderr says it.
#pragma once

#include "core/board/flight_board.h"
#include "core/collectives/op.h"
#include "core/memory/heap.h"
#include "transport/fault/spec.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tsp {

class RankFaults {
 public:
  /// Of all the job's faults, in the order in which they were given, those that strike `rank`, but for those that struck in an
  /// earlier attempt: `struck` has a bit for each. Heap and board are borrowed. Throws Error(refused) as check_faults().
  RankFaults(std::span<const fault::Spec> faults, std::uint64_t struck, int rank, Heap& heap, const FlightBoard& board);

  bool any() const { return !waiting_.empty(); }
  /// A training step begins, from 1.
  void at_step(std::uint64_t step);
  /// The rank's `sequence`-th operation of this kind begins.
  void at_operation(Op op, std::uint64_t sequence);

 private:
  struct Fault {
    fault::Spec spec;
    std::size_t number;  // among all of the job
    Op op;               // meaningful with spec.op
  };
  void strike_those(const std::function<bool(const Fault&)>& due);
  void strike(const Fault& fault);
  void stall(double seconds);

  int rank_;
  Heap* heap_;
  FlightBoard board_;
  std::vector<Fault> waiting_;  // those that haven't struck
};

/// Throws Error(refused) if a fault is of a kind that this version doesn't inject, or names an operation that doesn't exist, or
/// if there are more than the board has room for.
void check_faults(std::span<const fault::Spec> faults);

}  // namespace tsp
