// The part of every block that one rank of a tensor axis has: query heads, the K/V heads that they read, and rows of the MLP
// (columns of W_2). A K/V head that query heads of an earlier rank read, too, is a copy; only the first one can be.
#pragma once

#include "core/collectives/chunks.h"
#include "layers/io/config.h"
#include "layers/layout/heads.h"

#include <cstddef>

namespace tsprun::detail {

/// A rank's place among those of an axis that cuts heads and rows.
struct SlicePlace {
  int rank = 0;
  int ranks = 1;
};

/// A slice of a block, numbered within the whole block.
struct BlockSlice {
  HeadRange queries;
  HeadRange kv;           ///< the K/V heads that the query heads read
  std::size_t kv_copied;  ///< number of K/V heads, from the first on, that an earlier rank owns
  std::size_t first_row;  ///< first row of the MLP
  std::size_t rows;

  /// Returns the slice of such a layer at a place. Throws Error(refused) unless the ranks divide the query heads.
  static BlockSlice of(const ModelConfig& config, const LayerSpec& layer, SlicePlace at);

  /// Returns whether each K/V head is read by equally many query heads of the slice. The slice is then the block of a smaller
  /// model.
  bool uniform(const ModelConfig& config, const LayerSpec& layer) const;
  /// Returns the model of such layers with these heads and rows alone. Precondition for mapping query heads to K/V heads by the
  /// result: uniform().
  ModelConfig apply(const ModelConfig& config, const LayerSpec& layer) const;
};

/// A cut of a slice's heads and MLP rows over the ranks of another axis; heads and rows are numbered within the slice.
struct SliceCut {
  HeadCut heads;
  Chunks rows;

  /// Returns the cut of a slice that is uniform(). Throws Error(refused) unless `ranks` divides its query heads.
  static SliceCut of(const BlockSlice& slice, int ranks) {
    return {HeadCut(slice.queries.count, slice.kv.count, ranks), Chunks::balanced(ranks, slice.rows)};
  }
};

}  // namespace tsprun::detail
