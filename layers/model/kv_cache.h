// Keys and values of texts that are decoded together, on the ranks of a sequence axis: position s of every text is cached by rank
// s mod Σ, for all heads of this rank's slice.
#pragma once

#include "core/rank/rank.h"
#include "layers/io/by_layer.h"
#include "layers/layout/heads.h"
#include "layers/layout/token_layout.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tsprun::detail {

/// The heads of a layer of which keys and values are cached.
struct CachedHeads {
  std::size_t count;     ///< n_kv of the slice
  std::size_t head_dim;  ///< d
  /// For each rank of the sequence axis the K/V heads, numbered within the slice, of which it computes a new token's K and V.
  std::vector<HeadRange> shares;
};

/// This rank's part of the cache. The ranks of the sequence axis call the same methods in the same order.
class KvCache {
 public:
  /// Allocates room for `positions[n]` tokens of text n in each layer that has K and V of its own. Borrows `rank`, `sequence` and
  /// `config`. Throws Error(out_of_memory).
  KvCache(Rank& rank, Communicator& sequence, const ModelConfig& config, DType dtype, ByLayer<CachedHeads> heads,
          std::span<const std::size_t> positions);

  /// Stores K and V of a text's first tokens, of which `k` and `v` [1, S_p, heads, d] are this rank's by zigzag.
  void fill(std::size_t layer, std::size_t text, const Tensor& k, const Tensor& v, const TokenLayout& tokens);
  /// Stores K and V of the next token of every text, of which `kv` [texts, 2·heads·d] has this rank's share, K before V.
  /// `lengths`: tokens of each text that the cache holds already.
  void add(std::size_t layer, const ConstTensor& kv, std::span<const std::size_t> lengths);

  /// Returns K or V, to which a layer attends, of those of a text's positions [first, length) that this rank caches, [1,
  /// positions, heads, d]; the positions of a head lie one after another. The cache keeps all positions, also in layers with a
  /// window.
  ConstTensor keys(std::size_t layer, std::size_t text, std::size_t first, std::size_t length) const {
    return rows(layers_[config_.lender_of(layer)].k, text, first, length);
  }
  ConstTensor values(std::size_t layer, std::size_t text, std::size_t first, std::size_t length) const {
    return rows(layers_[config_.lender_of(layer)].v, text, first, length);
  }

 private:
  struct Layer {
    OwnedTensor k;  // [1, heads of the slice, positions of this rank of all texts, d]: a head is read as one stream
    OwnedTensor v;
  };

  std::size_t ranks() const { return static_cast<std::size_t>(sequence_.size()); }
  std::size_t me() const { return static_cast<std::size_t>(sequence_.rank()); }
  std::size_t cached(std::size_t length) const;
  Tensor rows(const OwnedTensor& of, std::size_t text, std::size_t first, std::size_t length) const {
    return of->slice(2, first_[text] + cached(first), cached(length) - cached(first)).transposed(1, 2);
  }
  void put(std::size_t layer, std::size_t text, std::size_t length, const HeadRange& heads, const ConstTensor& kv);
  void move_rows(const Tensor& to, const ConstTensor& from, const CachedHeads& heads, const TokenLayout& tokens);

  Rank& rank_;
  Communicator& sequence_;
  const ModelConfig& config_;
  DType dtype_;
  ByLayer<CachedHeads> heads_;
  std::vector<std::size_t> first_;  // row of each text's first position
  std::vector<Layer> layers_;
};

}  // namespace tsprun::detail
