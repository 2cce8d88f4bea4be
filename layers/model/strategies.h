// Which strategy computes the blocks of a mesh.
#pragma once

#include "layers/model/config.h"
#include "layers/model/mesh.h"
#include "layers/model/strategy.h"
#include "layers/sp/sequence_attention.h"

#include <cstddef>
#include <memory>

namespace tsprun {

struct StrategyOptions {
  ModelConfig config;
  DType dtype = DType::f32;
  SequenceExchange exchange = SequenceExchange::gather;  ///< of Scheme::dense
  std::size_t kv_bucket_heads = 0;  ///< of Scheme::tsp: K/V heads that are gathered at a time; 0: as it chooses
};

/// Throws Error(refused) for a mesh among whose ranks the model's heads can't be cut, with degrees that work. Needs no rank.
void check_mesh(const ModelConfig& config, const MeshShape& shape, SequenceExchange exchange);

/// All is borrowed. Throws Error(refused) for what the model's heads can't be cut into.
std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options);

}  // namespace tsprun
