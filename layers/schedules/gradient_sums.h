// Data parallelism: gradients are summed over the ranks that have the same weights and other sequences, pack by pack as soon as
// each pack's gradients are known, while the backward pass goes on.
//
//   plain   each pack is all-reduced
//   zero1   each pack is reduce-scattered along the chunks that an all_reduce has, which gives the same bits: a rank gets the
//           sums of the elements whose optimizer states it holds. It updates these, and the weights are all-gathered
//   zero3   so are packs that every rank has whole. Those that are cut (own_packs.h) are summed with each micro-batch by whoever
//           computes them, and each rank keeps its part of the weights
//
// With the axis shard, packs are cut over its ranks, and those of dp, which have the same parts, sum them after that, so sums
// have other bits than over all replicas at once.
#pragma once

#include "core/rank/rank.h"
#include "layers/parameters/parameter_store.h"

#include <cstddef>
#include <vector>

namespace tsprun::detail {

/// The sums over the data axis that are under way in a backward pass.
class GradientSums {
 public:
  /// Borrows everything. `sharers`: the ranks with other sequences over which packs are cut; `data`: those that have the same
  /// parts, or packs.
  GradientSums(Rank& rank, Communicator& sharers, Communicator& data, const ParameterStore& store)
      : rank_(rank), sharers_(sharers), data_(data), store_(store) {}

  /// Begins the sum of a pack; call it once per pack and pass. Everything else that the pack's gradients need must be done or
  /// posted on Stream::gradients. On one rank, and for a pack that is cut, only notes the call.
  void post(std::size_t pack, Purpose purpose);
  /// Returns whether post() was called for the pack in this pass.
  bool posted(std::size_t pack) const { return pack < posted_.size() && posted_[pack]; }
  /// Waits for all sums and makes the object ready for the next pass.
  void finish();
  /// Returns the sums of squares of the gradients of each part with elements that this rank counts, in their order; where sharers
  /// have parts of them, on the first of these, and elsewhere zeros. The bits are those of ComputeStream::sum_of_squares() of
  /// whole parts, however the parts are cut. Call it after finish(). Collective over the sharers.
  std::vector<double> squares();
  /// Begins to bring a pack's weights, each updated by the rank that has its states, to all ranks. Does nothing unless states are
  /// shared, and for a pack that is cut. Wait with finish().
  void gather_weights(std::size_t pack);

 private:
  std::vector<double> shared_squares();

  Rank& rank_;
  Communicator& sharers_;
  Communicator& data_;
  const ParameterStore& store_;
  std::vector<bool> posted_;
  std::vector<Work> works_;
};

}  // namespace tsprun::detail
