// TSP: tensor and sequence parallelism folded onto one axis (arXiv 2604.26294). Every rank keeps 1/D of the weights and 1/D of
// the tokens; weights travel to the tokens, and K and V are gathered along the sequence. On one rank it is the plain transformer.
#pragma once

#include "layers/schedules/strategy.h"
#include "layers/schedules/tsp/axis.h"

#include <cstddef>
#include <memory>

namespace tsprun::detail {

/// The strategy of tsp. Methods are documented in Strategy.
class Tsp final : public Strategy {
 public:
  /// Borrows `rank`, `axis` and the ranks of `owners`, which must outlive it. Throws Error(refused) if the axis doesn't divide
  /// the query heads. `slice`, which must be uniform(), is what the ranks of the axis have of each block together.
  Tsp(Rank& rank, Communicator& axis, const PackRanks& owners, const StrategyOptions& options, const BlockSlice& slice)
      : axis_(rank, axis, owners, options, slice) {}

  std::unique_ptr<StrategyPass> begin(const PassInputs& of) const override;

 private:
  TspAxis axis_;
};

}  // namespace tsprun::detail
