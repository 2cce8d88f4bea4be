// The check whether a model's heads can be cut over the ranks of a mesh.
#pragma once

#include "layers/io/config.h"
#include "layers/layout/mesh.h"

namespace tsprun {

/// Throws Error(refused) if the model's heads can't be cut over the ranks of a mesh; the message names degrees that work. Needs
/// no rank.
void check_mesh(const ModelConfig& config, const MeshShape& shape, SequenceExchange exchange);

}  // namespace tsprun
