// Sizes of the shards that each rank holds under TSP, in elements. Query heads are cut evenly. A K/V head belongs to the rank of
// the first query head that reads it. Rows of the MLP and of the vocabulary are cut so that shards differ by at most one row.
// Norm gains are on every rank.
#pragma once

#include "core/collectives/chunks.h"
#include "layers/io/config.h"
#include "layers/layout/heads.h"

#include <cstddef>
#include <cstdint>

namespace tsprun::detail {

/// The cut of one model over the ranks of a TSP axis.
class TspShards {
 public:
  /// Cuts the model over `ranks` ranks. Throws Error(refused) if `ranks` doesn't divide the query heads.
  TspShards(const ModelConfig& model, int ranks);

  const HeadCut& heads() const { return heads_; }
  const Chunks& mlp_rows() const { return mlp_rows_; }                ///< rows of gate and up; columns of down
  const Chunks& vocabulary_rows() const { return vocabulary_rows_; }  ///< rows of embedding and head

  std::uint64_t attention(int rank) const;   ///< W_Q, W_K, W_V, W_O of one layer
  std::uint64_t mlp(int rank) const;         ///< W_1, W_2, W_3 of one layer
  std::uint64_t vocabulary(int rank) const;  ///< embedding, and head unless tied
  std::uint64_t norm_gains() const;          ///< all norm gains, biases and learned positions of the model
  /// Returns the number of elements that the rank holds in all.
  std::uint64_t total(int rank) const;

 private:
  ModelConfig model_;
  HeadCut heads_;
  Chunks mlp_rows_;
  Chunks vocabulary_rows_;
};

}  // namespace tsprun::detail
