// Chooses the strategy that computes the blocks of a mesh.
#pragma once

#include "layers/model/config.h"
#include "layers/model/mesh.h"
#include "layers/model/strategy.h"
#include "layers/sp/sequence_attention.h"

#include <cstddef>
#include <memory>

namespace tsprun {

/// Options of make_strategy().
struct StrategyOptions {
  ModelConfig config;
  DType dtype = DType::f32;
  SequenceExchange exchange = SequenceExchange::gather;  ///< how Scheme::dense exchanges K and V
  std::size_t kv_bucket_heads = 0;                       ///< K/V heads gathered at a time; 0: the strategy chooses
};

/// Throws Error(refused) if the model's heads can't be cut over the ranks of a mesh; the message names degrees that work. Needs
/// no rank.
void check_mesh(const ModelConfig& config, const MeshShape& shape, SequenceExchange exchange);

/// Returns the strategy of a mesh. Borrows `rank` and `mesh`. Throws Error(refused) as check_mesh() does.
std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options);

}  // namespace tsprun
