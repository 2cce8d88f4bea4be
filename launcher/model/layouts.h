// What --layout, --tp and --sp mean for a model: a mesh of ranks. What can't be is refused by name, with what works.
#pragma once

#include "launcher/options.h"
#include "layers/model/config.h"
#include "layers/model/mesh.h"
#include "layers/sp/sequence_attention.h"
#include "layers/theory/spread.h"

#include <cstddef>
#include <string>

namespace tsprun::launcher {

/// --layout with the variants of --tp and --sp; axes of degree 1 are left out. Throws Error(refused) for an axis that isn't
/// known.
theory::Spread spread_of(const Layout& layout, TensorExchange tensor, SequenceExchange sequence);

/// `-n N` alone is tsp=N. Axes of degree 1 don't matter. Throws Error(refused) for a --tp or --sp that isn't one, or whose axis
/// the layout doesn't have.
MeshShape mesh_shape(const GlobalOptions& global);
TensorExchange tensor_exchange(const GlobalOptions& global);
SequenceExchange sequence_exchange(const GlobalOptions& global);

/// Throws Error(refused) unless the model's heads can be cut as the layout says.
void check_heads(const GlobalOptions& global, const ModelConfig& config);
/// Throws Error(refused) unless dp divides --batch.
void check_batch(const GlobalOptions& global, std::size_t batch);
/// Throws Error(refused) for a layout with dp.
void refuse_data_axis(const GlobalOptions& global, const std::string& why);

/// How the number of ranks was chosen, for messages: "--layout tsp=6", "-n 6".
std::string ranks_as_typed(const GlobalOptions& global);

}  // namespace tsprun::launcher
