// What the schedules of TSP share: the axis, how weights are cut over it, element types, and the shape of the present pass.
#pragma once

#include "core/collectives/chunks.h"
#include "core/rank/rank.h"
#include "layers/heads.h"
#include "layers/model/config.h"
#include "layers/model/parameter_store.h"
#include "layers/model/strategy.h"
#include "layers/model/token_layout.h"
#include "layers/slice.h"

#include <cstddef>
#include <optional>

namespace tsprun {

struct TspOptions {
  ModelConfig config;                    ///< of the whole model
  std::optional<BlockSlice> slice = {};  ///< of every block, which these ranks have together; none: all. Must be uniform()
  DType dtype = DType::f32;
  std::size_t kv_bucket_heads = 0;  ///< K/V heads that are gathered at a time; 0: kv_bucket_heads()
};

/// One rank's place on the axis. Borrowed by the schedules of both sublayers.
struct TspAxis {
  Rank& rank;
  Communicator& group;
  ModelConfig whole;   ///< the model
  BlockSlice slice;    ///< of its blocks
  ModelConfig config;  ///< the model with the slice's heads and rows
  DType dtype;
  DType sums;
  HeadCut heads;
  Chunks mlp_rows;
  std::size_t bucket_heads;
  const ParameterStore* store = nullptr;  ///< of the present pass, as `tokens`
  const TokenLayout* tokens = nullptr;
  kernels::AttentionDropout dropout = {};

  TspAxis(Rank& on, Communicator& axis, const TspOptions& options);

  int D() const { return group.size(); }
  int p() const { return group.rank(); }
  int left() const { return (p() + D() - 1) % D(); }
  int right() const { return (p() + 1) % D(); }
  ComputeStream& compute() const { return rank.compute(); }
  std::size_t h() const { return config.hidden; }
  std::size_t d() const { return config.head_dim; }
  std::size_t rows() const { return tokens->rows(); }  ///< B·S_p

  /// A tensor of one step of the schedule.
  OwnedTensor step(DType of, std::initializer_list<std::size_t> sizes, std::string_view what) const {
    return rank.tensor(Category::workspace, of, sizes, what);
  }
};

}  // namespace tsprun
