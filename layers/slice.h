// The part of every block that one rank of a tensor axis has: query heads, the K/V heads that they read, rows of the MLP (columns
// of W_2). K/V heads that an earlier rank's query heads read too are copies: at most the first.
#pragma once

#include "layers/heads.h"
#include "layers/model/config.h"

#include <cstddef>

namespace tsprun {

struct BlockSlice {
  HeadRange queries;
  HeadRange kv;           ///< those that the query heads read
  std::size_t kv_copied;  ///< so many of them, the first, belong to an earlier rank
  std::size_t first_row;  ///< of the MLP
  std::size_t rows;

  /// All of every block.
  static BlockSlice whole(const ModelConfig& config);
  /// Throws Error(refused) unless `ranks` divides the query heads.
  static BlockSlice of(const ModelConfig& config, int rank, int ranks);

  /// Whether every K/V head is read by equally many of the query heads: the slice is then a smaller model's block.
  bool uniform(const ModelConfig& config) const;
  /// The model with these heads and rows alone. Precondition: uniform(), for whoever maps query heads to K/V heads by it.
  ModelConfig apply(ModelConfig config) const;
};

}  // namespace tsprun
