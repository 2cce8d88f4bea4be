// Sums of weight gradients at their owners: each rank computes its part of a shard's gradient, and a reduce adds the parts of all
// ranks at the rank that owns the shard.
#pragma once

#include "layers/schedules/tsp/axis.h"

#include <cstddef>
#include <deque>

namespace tsprun::detail {

/// The reductions of TSP attention's weight gradients that are under way in a pass. Borrows both.
class OwnerSums {
 public:
  OwnerSums(const TspAxis& axis, OwnPacks& own) : axis_(axis), own_(own) {}

  /// This rank's part of a shard's gradient, [rows, h]: at the owner its micro-batch's gradient, else memory that lives until it
  /// was sent.
  struct Part {
    OwnedTensor memory;
    MicroBatchGradient own;
    Tensor rows;
  };
  /// Returns memory for this rank's part of the gradient of parts [first, first + count) of a pack of `owner`, `rows` rows in
  /// all, which the caller overwrites. Waits for the oldest reductions first, so that at most two are still under way.
  Part part(std::size_t pack, int owner, std::size_t first, std::size_t count, std::size_t rows);
  /// Begins to sum the parts of all ranks at the owner, in canonical order (docs/algorithms.md, "Order of sums").
  void send(Part part, int owner);
  /// Returns when all sums are complete.
  void settle();

 private:
  /// A part that is being summed.
  struct Leaving {
    Part part;
    Work work;
  };
  void finish_oldest();

  const TspAxis& axis_;
  OwnPacks& own_;
  std::deque<Leaving> on_their_way_;
};

}  // namespace tsprun::detail
