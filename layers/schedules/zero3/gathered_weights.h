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
#include "layers/io/config.h"
#include "layers/schedules/sublayer_weights.h"

#include <array>

namespace tsprun::detail {

/// The weights of ZeRO-3. Methods are documented in SublayerWeights.
class GatheredWeights final : public SublayerWeights {
 public:
  /// Borrows `rank` and `axis`, which must outlive it.
  GatheredWeights(Rank& rank, Communicator& axis, const ModelConfig& config);

  PackPlan stored(PackPlan whole) const override;
  void begin_forward(const ParameterStore& store, const Visits& visits) override;
  void begin_backward(const MicroBatch& of) override;
  Tensor visit(std::size_t pack) override;
  void used(std::size_t pack) override;
  bool frees() const override { return true; }
  Tensor gradients(std::size_t pack) override;
  void written(std::size_t pack) override;
  bool complete_on_stream() const override { return axis_.size() == 1 || micro_batch().first(); }
  void end() override;

 private:
  /// A pack of one kind, attention or MLP, and its gathered rows from the visit before its own until used().
  struct Sublayer {
    Chunks rows;  ///< how the pack's rows are cut over the ranks
    Transfer gathered;
  };
  Sublayer& sublayer(std::size_t pack) { return sublayers_[pack % 2]; }
  void fetch(const Visit* next);

  Communicator& axis_;
  std::array<Sublayer, 2> sublayers_;  // attention, MLP
  Transfer scattered_;                 // this rank's part of a pack's gradients until their sums are complete
  MicroBatchGradient own_;             // where the sum of this rank's rows of that pack arrives
};

}  // namespace tsprun::detail
