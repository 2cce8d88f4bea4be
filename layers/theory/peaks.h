// A forecast of a training step's memory peaks under TSP, rank by rank: the allocations of the schedule, replayed without the
// bytes.
//
// It walks through one forward and one backward pass as model.cpp, block.cpp, vocabulary.cpp and tsp/ do and books what they
// book, where they book it. What isn't in it: small staging buffers of the collectives, the alignment of blocks, and copies that
// transports need which can't read their peers' memory.
#pragma once

#include "core/memory/category.h"
#include "layers/theory/setting.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsp::theory {

struct PeakOptions {
  std::size_t threads = 1;          ///< of a rank: kernels' workspace
  std::size_t kv_bucket_heads = 0;  ///< as ModelOptions
  DType dtype = DType::f32;         ///< of setting.bytes
  /// Embedding rows that other ranks ask of each rank, and the own ones: depends on the ids. Empty: as if ids were uniform.
  std::vector<std::uint64_t> rows_asked = {};
};

/// Peaks by category and in total of one training step, parameters and optimizer included, on `rank` of `ranks`.
CategoryBytes tsp_training_peaks(const Setting& setting, int ranks, int rank, const PeakOptions& options);

}  // namespace tsp::theory
