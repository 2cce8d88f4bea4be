// Gradients of weight shards on their way to the ranks that own them: each rank computes its part, all parts are summed at the
// owner.
#pragma once

#include "layers/tsp/axis.h"

#include <cstddef>
#include <deque>

namespace tsprun {

class OwnerSums {
 public:
  explicit OwnerSums(TspAxis& axis) : axis_(axis) {}

  /// This rank's part of a shard's gradient [rows, h]: the store's own rows at the owner, else memory that lives until it was
  /// sent.
  struct Part {
    OwnedTensor memory;
    Tensor rows;
  };
  /// A place for this rank's part of `count` neighbouring parts of a pack, to be written from scratch. At most three earlier
  /// parts stay on their way: waits for the oldest.
  Part part(std::size_t pack, int owner, std::size_t first, std::size_t count, std::size_t rows);
  /// Begins to sum the parts of all ranks at the owner.
  void send(Part part, int owner);
  /// Returns when all sums are complete.
  void settle();

 private:
  TspAxis& axis_;
  std::deque<Transfer> on_their_way_;
};

}  // namespace tsprun
