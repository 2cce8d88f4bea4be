// Chooses the strategy that computes the blocks of a mesh.
#pragma once

#include "layers/io/config.h"
#include "layers/layout/mesh.h"
#include "layers/schedules/strategy.h"

#include <cstddef>
#include <memory>

namespace tsprun::detail {

/// Options of make_strategy().
struct StrategyOptions {
  ModelConfig config;
  DType dtype = DType::f32;
  std::size_t kv_bucket_heads = 0;  ///< K/V heads gathered at a time; 0: the strategy chooses
};

/// Returns the strategy of a mesh. Borrows `rank` and `mesh`. Throws Error(refused) as check_layout() does.
std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options);

}  // namespace tsprun::detail
