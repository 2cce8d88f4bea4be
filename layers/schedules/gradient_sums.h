// Data parallelism: gradients are summed over the ranks that have the same weights and other sequences, pack by pack as soon as
// each pack's gradients are known, while the backward pass goes on.
#pragma once

#include "core/rank/rank.h"
#include "layers/parameters/parameter_store.h"

#include <cstddef>
#include <vector>

namespace tsprun::detail {

/// The sums over the data axis that are under way in a backward pass.
class GradientSums {
 public:
  /// Borrows everything. `data`: the ranks with the same weights and other sequences.
  GradientSums(Rank& rank, Communicator& data, const ParameterStore& store) : rank_(rank), data_(data), store_(store) {}

  /// Begins the sum of a pack; call it once per pack and pass. Everything else that the pack's gradients need must be done or
  /// posted on Stream::gradients. On one rank only notes the call.
  void post(std::size_t pack, Purpose purpose);
  /// Returns whether post() was called for the pack in this pass.
  bool posted(std::size_t pack) const { return pack < posted_.size() && posted_[pack]; }
  /// Waits for all sums and makes the object ready for the next pass.
  void finish();

 private:
  Rank& rank_;
  Communicator& data_;
  const ParameterStore& store_;
  std::vector<bool> posted_;
  std::vector<Work> works_;
};

}  // namespace tsprun::detail
