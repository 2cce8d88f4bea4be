// What the two schedules of TSP (attention.h, mlp.h) share in all passes: the axis, how weights are cut over it, element types.
#pragma once

#include "core/collectives/chunks.h"
#include "core/rank/rank.h"
#include "layers/io/config.h"
#include "layers/layout/heads.h"
#include "layers/layout/slice.h"
#include "layers/layout/token_layout.h"
#include "layers/schedules/strategy.h"

#include <cstddef>

namespace tsprun::detail {

/// One rank's place on the axis of TSP. The schedules of both sublayers borrow it. Throws Error(refused) on construction if the
/// axis doesn't divide the query heads.
struct TspAxis {
  Rank& rank;
  Communicator& group;
  PackRanks owners;    ///< the ranks with which this one shares what it owns
  ModelConfig whole;   ///< configuration of the whole model
  BlockSlice slice;    ///< slice of each block that these ranks hold together
  ModelConfig config;  ///< the model as it would be with the slice's heads and rows alone
  DType dtype;
  DType sums;
  HeadCut heads;
  Chunks mlp_rows;
  std::size_t bucket_heads;

  /// `of` must be uniform().
  TspAxis(Rank& on, Communicator& axis, const PackRanks& with, const StrategyOptions& options, const BlockSlice& of);

  int D() const { return group.size(); }
  int p() const { return group.rank(); }
  ComputeStream& compute() const { return rank.compute(); }
  std::size_t h() const { return config.hidden; }
  std::size_t d() const { return config.head_dim; }

  /// Returns a workspace tensor for one step of the schedule.
  OwnedTensor step(DType of, std::initializer_list<std::size_t> sizes, std::string_view what) const {
    return rank.tensor(Category::workspace, of, sizes, what);
  }
};

}  // namespace tsprun::detail
