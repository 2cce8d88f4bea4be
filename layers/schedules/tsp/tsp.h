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
  /// the query heads. `at`: the place of the ranks of the axis together on one that cuts heads, whose slices must be uniform().
  Tsp(Rank& rank, Communicator& axis, const PackRanks& owners, const StrategyOptions& options, SlicePlace at)
      : axis_(rank, axis, owners, options, at) {}

  SavedSizes saved_sizes(std::size_t layer, const TokenLayout& tokens) const override {
    const TspCut& cut = axis_.of(layer);
    return SavedSizes::of(tokens, cut.slice.queries.count, cut.slice.kv.count, cut.d, cut.slice.rows);
  }
  std::unique_ptr<StrategyPass> begin(const PassInputs& of) const override;

 private:
  TspAxis axis_;
};

}  // namespace tsprun::detail
