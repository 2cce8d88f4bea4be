// Data parallelism: gradients are summed over the ranks that have the same weights and other sequences, pack by pack, as soon as
// each is known, while the backward pass goes on.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/parameter_store.h"

#include <cstddef>
#include <vector>

namespace tsprun {

class GradientSums {
 public:
  /// `data`: those ranks. All borrowed.
  GradientSums(Rank& rank, Communicator& data, const ParameterStore& store) : rank_(rank), data_(data), store_(store) {}

  /// The sum of a pack begins, once in a pass; what else its gradients need was posted on Stream::gradients. With one rank:
  /// nothing.
  void post(std::size_t pack, Purpose purpose);
  bool posted(std::size_t pack) const { return pack < posted_.size() && posted_[pack]; }
  /// Returns when all sums are there; the next pass may begin.
  void finish();

 private:
  Rank& rank_;
  Communicator& data_;
  const ParameterStore& store_;
  std::vector<bool> posted_;
  std::vector<Work> works_;
};

}  // namespace tsprun
