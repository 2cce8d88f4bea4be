// What one rank receives in a whole step under TSP, by purpose: embedding and head beside the blocks. Sums over the ranks are
// those of traffic.h; how they are spread depends on how sums travel.
#pragma once

#include "layers/theory/traffic.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::theory {

/// Rows of the embedding that change ranks, counted from the ids.
struct RemoteRows {
  std::uint64_t needed = 0;  ///< tokens of this rank whose row lives elsewhere
  std::uint64_t wanted = 0;  ///< tokens of other ranks whose row lives here
};
/// By rank. `ids` [B, S] in natural order, cut by zigzag; the vocabulary is cut into balanced rows. Ids beyond it count as the
/// last one.
std::vector<RemoteRows> remote_rows(std::span<const std::int32_t> ids, const Setting& setting, int ranks);
/// Sum of what all ranks need: R.
std::uint64_t remote_rows_of_all(std::span<const RemoteRows> rows);

/// What `rank` receives when the gradients of `elements` parameters that every rank has are all-reduced as one.
std::uint64_t all_reduced_of_rank(const Setting& setting, int ranks, int rank, SumPath path, std::uint64_t elements);
/// What `rank` receives in a training step, or in the forward pass of an evaluation (`backward` false). Sums of attention's
/// gradients, of dK/dV, of the gathered head and of norm gains go by `path`; those of the MLP and of a rotated head always go the
/// ring.
Traffic tsp_step_of_rank(const Setting& setting, int ranks, int rank, SumPath path, const RemoteRows& rows, bool backward);

}  // namespace tsprun::theory
