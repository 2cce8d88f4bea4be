// The sum over the parameters of all stages of a pipeline, in the order in which one rank adds that has all of them, so that the
// norm of gradients has the same bits with and without a pipeline:
//
//   1. all stages gather the sums of each other's parts
//   2. the first adds them in the whole model's order, which isn't that of stages: norms lie behind all layers' matrices
#pragma once

#include "core/rank/rank.h"
#include "layers/io/config.h"
#include "layers/layout/layout.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Adds up a number for each part of the parameters, over the stages of a pipeline.
class StageSums {
 public:
  /// Finds the order, for this rank of the layout. Borrows `rank` and `stages`, the ranks that have the same place but on other
  /// stages.
  StageSums(Rank& rank, Communicator& stages, const ModelConfig& config, const Layout& layout);

  /// Returns the sum on the first stage, elsewhere 0. `mine`: a number for each part with elements that this rank counts, in
  /// their order. Collective over the stages. Throws std::invalid_argument if there are more or fewer.
  double sum(std::span<const double> mine);

 private:
  Rank& rank_;
  Communicator& stages_;
  std::vector<std::size_t> counts_;  // parts that each stage counts
  std::vector<std::size_t> order_;   // of all stages' parts, one stage behind the other
};

}  // namespace tsprun::detail
