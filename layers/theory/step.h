// Bytes that one rank receives in a whole step under TSP, by purpose: blocks, embedding and head. Summed over the ranks they
// equal the counts of flows.h; how they are distributed over ranks depends on the path that sums take (SumPath).
#pragma once

#include "layers/theory/traffic.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail::theory {

/// Embedding rows that travel to or from one rank, as counted from the ids.
struct RemoteRows {
  std::uint64_t needed = 0;  ///< tokens of this rank whose row lives on another rank
  std::uint64_t wanted = 0;  ///< tokens of other ranks whose row lives on this rank
};
/// Returns the counts of every rank. `ids` [B, S] are in natural order and are cut by zigzag; the vocabulary is cut into balanced
/// rows. An id beyond the vocabulary counts as belonging to the last rank.
std::vector<RemoteRows> remote_rows(std::span<const std::int32_t> ids, const Setting& setting, int ranks);
/// Returns R, the sum of `needed` over all ranks.
std::uint64_t remote_rows_of_all(std::span<const RemoteRows> rows);

/// Path of sums to their owner: read from every peer at the end, or passed on around the ring. The totals over ranks are the
/// same.
enum class SumPath { direct, ring };
/// Returns what `rank` receives in one block, attention and MLP without norm gains. `attention` is the path of attention's weight
/// gradients and of dK/dV; the MLP's weight gradients always go round the ring.
Traffic tsp_block_of_rank(const Setting& setting, int ranks, int rank, SumPath attention);

/// Returns the number of elements that `rank` receives when `elements` of every rank are all-reduced, chunk by chunk.
std::uint64_t all_reduced_of_rank(int ranks, int rank, SumPath path, std::uint64_t elements);
/// Returns the bytes that `rank` receives in a training step, or, with `backward` false, in the forward pass of an evaluation.
/// Sums of attention's gradients, of dK/dV, of the gathered head and of norm gains take `path`; those of the MLP and of a rotated
/// head always go round the ring.
Traffic tsp_step_of_rank(const Setting& setting, int ranks, int rank, SumPath path, const RemoteRows& rows, bool backward);

}  // namespace tsprun::detail::theory
