// Which part of the parameters each rank holds under TSP, in elements. Query heads are cut evenly; K/V heads go with their first
// query head; rows of the MLP and of the vocabulary are cut so that shards differ by at most one row; norm gains are on every
// rank.
#pragma once

#include "core/collectives/chunks.h"
#include "layers/heads.h"
#include "layers/model/config.h"

#include <cstddef>
#include <cstdint>

namespace tsprun::theory {

class TspShards {
 public:
  /// Throws Error(refused) if `ranks` doesn't divide the query heads.
  TspShards(const ModelConfig& model, int ranks);

  const HeadCut& heads() const { return heads_; }
  const Chunks& mlp_rows() const { return mlp_rows_; }                ///< of gate and up; columns of down
  const Chunks& vocabulary_rows() const { return vocabulary_rows_; }  ///< of embedding and head

  std::uint64_t attention(int rank) const;   ///< W_Q, W_K, W_V, W_O of one layer
  std::uint64_t mlp(int rank) const;         ///< W_1, W_2, W_3 of one layer
  std::uint64_t vocabulary(int rank) const;  ///< embedding, and head unless tied
  std::uint64_t norm_gains() const;          ///< of the whole model, on every rank
  /// All that the rank holds.
  std::uint64_t total(int rank) const;

 private:
  ModelConfig model_;
  HeadCut heads_;
  Chunks mlp_rows_;
  Chunks vocabulary_rows_;
};

}  // namespace tsprun::theory
