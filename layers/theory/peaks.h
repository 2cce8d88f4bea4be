// A forecast of memory peaks, for every scheme: the schedule itself runs on a phantom rank (Context::phantom()), which books what
// it and its collectives allocate, and computes nothing. It is exact where all ranks share memory. What isn't in it: buffers that
// collectives need over transports which can't read their peers' memory.
#pragma once

#include "core/memory/category.h"
#include "layers/theory/layouts.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsp::theory {

struct PeakOptions {
  std::size_t threads = 1;          ///< of a rank: kernels' workspace
  std::size_t kv_bucket_heads = 0;  ///< as ModelOptions
  bool training = true;             ///< training steps; false: evaluations
  std::uint64_t budget = 0;         ///< of the rank's heap, 0: none. What doesn't fit throws Error(out_of_memory), as on the rank
  std::size_t passes = 2;           ///< how many; from the second on what collectives keep for later use is there from the start
};

/// Peaks by category and in total on `rank` of the mesh's ranks. `ids` [B, S] in natural order: how many rows of the embedding go
/// where depends on them; empty: as if ids were uniform. Throws Error(refused) for a layout that can't be.
CategoryBytes peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids = {}, const PeakOptions& options = {});
/// Of the rank that holds most, for ids of any kind.
CategoryBytes peaks_of_fullest(const MeshSetting& of, const PeakOptions& options = {});
/// Whether ranks with a heap of options.budget bytes get through: what they hold at once fits, and in the pieces in which it is
/// free. Asked of each rank of a replica, of the first kMostAsked where there are more, for ids that spread evenly and for such
/// as all lie on one rank.
bool fits(const MeshSetting& of, const PeakOptions& options);
inline constexpr int kMostAsked = 16;
/// Of generating text: a prompt, the first `prompt` of `ids`, and the other ids as tokens after it, one at a time. Batch and
/// sequence of the setting are of no account.
CategoryBytes decoding_peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids, std::size_t prompt,
                             const PeakOptions& options = {});
/// Of one block on its own (layers/model/single_block.h), forward and with options.training backward.
CategoryBytes block_peaks(const MeshSetting& of, int rank, const PeakOptions& options = {});

}  // namespace tsp::theory
