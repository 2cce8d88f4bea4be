// What the two schedules of TSP (attention.h, mlp.h) share in all passes: the axis, how weights are cut over it, element types.
#pragma once

#include "core/collectives/chunks.h"
#include "core/rank/rank.h"
#include "layers/io/by_layer.h"
#include "layers/io/config.h"
#include "layers/layout/heads.h"
#include "layers/layout/slice.h"
#include "layers/layout/token_layout.h"
#include "layers/schedules/strategy.h"

#include <cstddef>

namespace tsprun::detail {

/// How a layer's weights are cut over the axis of TSP. Heads and rows are numbered within the slice.
struct TspCut {
  BlockSlice slice;  ///< of the block that the ranks of the axis hold together
  HeadCut heads;
  Chunks mlp_rows;
  std::size_t d;  ///< of a head
  double scale;   ///< of scores
};

/// One rank's place on the axis of TSP. The schedules of both sublayers borrow it. Throws Error(refused) on construction if the
/// axis doesn't divide the query heads.
struct TspAxis {
  Rank& rank;
  Communicator& group;
  PackRanks owners;  ///< the ranks with which this one shares what it owns
  ModelConfig config;
  DType dtype;
  DType sums;
  ByLayer<TspCut> cuts;
  std::size_t bucket_heads;

  /// `at`: the place of the ranks of the axis together on one that cuts heads, whose slices must be uniform().
  TspAxis(Rank& on, Communicator& axis, const PackRanks& with, const StrategyOptions& options, SlicePlace at);

  int D() const { return group.size(); }
  int p() const { return group.rank(); }
  ComputeStream& compute() const { return rank.compute(); }
  std::size_t h() const { return config.hidden; }
  const TspCut& of(std::size_t layer) const { return cuts[layer]; }

  /// Returns a workspace tensor for one step of the schedule.
  OwnedTensor step(DType of, std::initializer_list<std::size_t> sizes, std::string_view what) const {
    return rank.tensor(Category::workspace, of, sizes, what);
  }
};

}  // namespace tsprun::detail
