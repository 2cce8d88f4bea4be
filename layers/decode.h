// Decoding one token at a time moves activations, never weights. Page "Decoding", for every mesh of a tensor and a sequence axis.
//
// A token's x is replicated. A tensor rank works with the heads of its slice (slice.h); the ranks of its sequence axis share
// them: each computes q, k, v, W_O and MLP rows of its *share*, and caches K and V of the positions s with s mod Σ = its rank,
// for all heads of the slice. Under TSP the share is the weights that a rank has; under tp×sp, where all have the slice's
// weights, a part of them. Per layer q is gathered along the sequence axis; new K and V go to the position's rank; every rank
// attends with its positions for all heads of the slice; the partial results of a head go to the rank whose share it is in and
// are merged; W_O and the MLP give partial sums, one all_reduce each over all ranks. What a rank receives for a token depends on
// h, n_h, n_kv, d, V, L and the degrees alone.
#pragma once

#include "core/rank/rank.h"
#include "layers/heads.h"
#include "layers/model/model.h"
#include "layers/packs.h"
#include "layers/slice.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tsprun {

class Decoder {
 public:
  /// Takes the memory of the cache for `positions` tokens in all. `model` must outlive it. Throws Error(out_of_memory), and
  /// Error(refused) for a mesh that why_not() refuses.
  Decoder(Rank& rank, Model& model, std::size_t positions);
  /// Why models on such a mesh can't be decoded; empty if they can.
  static std::string why_not(const MeshShape& shape, SequenceExchange exchange);

  /// The prompt's tokens but the last go through the training schedule's forward pass, the last through a step.
  /// At least one token; at most as many as the cache has room for. Returns the logits of the token that follows: [V], of the
  /// type of sums, the same on every rank; good until the next call.
  ConstTensor prompt(std::span<const Token> ids);
  /// One more token; the logits of the one that follows.
  ConstTensor step(Token token);

  /// Forgets all tokens: the next call is prompt().
  void forget() { length_ = 0; }

  std::size_t length() const { return length_; }       ///< tokens so far
  std::size_t capacity() const { return positions_; }  ///< tokens that fit

 private:
  struct Cache {
    OwnedTensor k;  // [1, positions of this rank, heads of the slice, d]
    OwnedTensor v;
  };
  /// Heads, numbered within the slice, that one rank of the sequence axis computes.
  struct Share {
    HeadRange queries;
    HeadRange kv;  // those whose first query head of the slice is in the share
  };
  /// Rows of this rank's share.
  struct AttentionRows {
    Tensor K, V, Q, Ot;
  };

  int D() const { return sequence_.size(); }
  int p() const { return sequence_.rank(); }
  const Share& mine() const { return shares_[static_cast<std::size_t>(p())]; }
  bool holds_share_only() const { return model_.mesh().shape().scheme == Scheme::tsp; }
  /// Over which the vocabulary's rows are cut.
  Communicator& vocabulary_ranks() const;
  AttentionRows attention_rows(std::size_t layer) const;
  /// How the sequence axis cuts the MLP's rows of the slice.
  Chunks mlp_cut() const { return Chunks::balanced(D(), slice_.rows); }
  MlpMatrices mlp_rows(std::size_t layer) const;
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
  /// Elements of each rank's part, `width` a query head of its share.
  std::vector<std::size_t> by_share(std::size_t width) const;
  OwnedTensor row(DType dtype, std::size_t width, std::string_view what) {
    return rank_.tensor(Category::workspace, dtype, {1, width}, what);
  }

  Rank& rank_;
  Model& model_;
  Communicator& sequence_;
  const ModelConfig& config_;
  DType dtype_;
  DType sums_;
  BlockSlice slice_;
  std::vector<Share> shares_;  // by rank of the sequence axis
  std::size_t positions_;
  std::size_t length_ = 0;
  std::vector<Cache> cache_;  // by layer
  OwnedTensor rope_;          // [1, d]: of the present position; none with learned ones
  OwnedTensor logits_;        // [V]
};

}  // namespace tsprun
