// ZeRO-3 with sequence parallelism over the same ranks: every rank keeps 1/D of each sublayer's weights, gradients and optimizer
// states, and 1/D of the tokens. The weights of a sublayer are gathered whole while the sublayer before is computed; K and V are
// gathered along the sequence (layers/schedules/sp); gradients are summed at their owners while the next sublayer is computed.
// The computation itself is in layers/schedules/dense.cpp.
//
//   compute     attention 0 | MLP 0       | attention 1 | …          backward   … | MLP 0       | attention 0
//   weights     MLP 0       | attention 1 | MLP 1       | …                     … | attention 0 |
//   gradients                                                                   … | attention 1 | MLP 0       | attention 0
//
// This is the fair baseline for TSP: it needs the same persistent memory and moves the same bytes, but its transients are the
// weights and gradients of whole sublayers instead of shards, and all columns of the MLP at once. Rows of a pack are spread so
// that shards differ by at most one row, whatever heads and columns they belong to, so any number of ranks works.
#pragma once

#include "core/collectives/chunks.h"
#include "layers/io/by_layer.h"
#include "layers/io/config.h"
#include "layers/schedules/sublayer_weights.h"

#include <array>

namespace tsprun::detail {

/// The weights of ZeRO-3. Methods are documented in SublayerWeights.
class GatheredWeights final : public SublayerWeights {
 public:
  /// Borrows `rank` and `axis`, which must outlive it.
  GatheredWeights(Rank& rank, Communicator& axis, const ModelConfig& config);

  std::unique_ptr<WeightsPass> begin(const PassInputs& of) const override;

 private:
  Rank& rank_;
  Communicator& axis_;
  ByLayer<std::array<Chunks, 2>> rows_;  // of a pack of attention, of an MLP: how they are cut over the ranks
};

}  // namespace tsprun::detail
