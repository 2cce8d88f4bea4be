// Decoding under TSP: one token at a time moves activations, never weights. Page "Decoding".
//
// Every rank keeps the weights that it has in training (heads, MLP rows, vocabulary rows) and the K/V cache of the positions s
// with s mod D = p, all heads. A token's x is replicated. Per layer each rank computes q, k, v of its own heads; q is gathered;
// new K and V go to the position's rank; every rank attends with its positions for all heads; the partial results of a head go to
// its owner and are merged; W_O and the MLP give partial sums, one all_reduce each. What a rank receives for a token depends on
// h, n_h, n_kv, d, V, L and D alone.
#pragma once

#include "core/rank/rank.h"
#include "layers/heads.h"
#include "layers/model/model.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tsp {

class TspDecoder {
 public:
  /// Takes the memory of the cache for `positions` tokens in all. `model` must outlive it. Throws Error(out_of_memory).
  TspDecoder(Rank& rank, Model& model, std::size_t positions);

  /// The prompt's tokens but the last go through the training schedule's forward pass, the last through a step.
  /// At least one token; at most as many as the cache has room for. Returns the logits of the token that follows: [V], of the
  /// type of sums, the same on every rank; good until the next call.
  ConstTensor prompt(std::span<const Token> ids);
  /// One more token; the logits of the one that follows.
  ConstTensor step(Token token);

  std::size_t length() const { return length_; }       ///< tokens so far
  std::size_t capacity() const { return positions_; }  ///< tokens that fit

 private:
  struct Cache {
    OwnedTensor k;  // [1, positions of this rank, n_kv, d]
    OwnedTensor v;
  };
  int D() const { return axis_.size(); }
  int p() const { return axis_.rank(); }
  std::size_t cached(std::size_t length) const;
  void fill_cache(std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens);
  void move_rows(const Tensor& to, const ConstTensor& from, const TokenLayout& tokens);
  OwnedTensor embed(Token token);
  OwnedTensor attention(std::size_t layer, const ConstTensor& x);
  void store_new(std::size_t layer, const ConstTensor& kv);
  OwnedTensor merged_heads(const Tensor& parts);
  OwnedTensor mlp(std::size_t layer, const ConstTensor& x);
  OwnedTensor normed(const Tensor& x, const NormWeights& norm);
  void rotate(const Tensor& x);
  void sum_over_ranks(const Tensor& y);
  OwnedTensor row(DType dtype, std::size_t width, std::string_view what) {
    return rank_.tensor(Category::workspace, dtype, {1, width}, what);
  }

  Rank& rank_;
  Model& model_;
  Communicator& axis_;
  const ModelConfig& config_;
  DType dtype_;
  DType sums_;
  HeadCut heads_;
  std::size_t positions_;
  std::size_t length_ = 0;
  std::vector<Cache> cache_;  // by layer
  OwnedTensor rope_;          // [1, d]: of the present position
  OwnedTensor logits_;        // [V]
};

}  // namespace tsp
