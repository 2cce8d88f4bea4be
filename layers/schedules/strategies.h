// Chooses the strategy that computes the blocks of a mesh.
#pragma once

#include "layers/layout/mesh.h"
#include "layers/schedules/strategy.h"

#include <memory>

namespace tsprun::detail {

/// Returns the strategy of a mesh. Borrows `rank` and `mesh`. Throws Error(refused) as check_layout() does.
std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options);

}  // namespace tsprun::detail
