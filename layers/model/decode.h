// Decoding one token at a time, on any mesh of a tensor and a sequence axis: activations move, weights never do
// (docs/algorithms.md, "Decoding").
//
// Every rank has a token's x. A tensor rank works with the heads of its slice (slice.h), and the Σ ranks of its sequence axis
// divide that work: each computes q, k, v, W_O and MLP rows of its *share*, and caches K and V of the positions s with
// s mod Σ = its rank, for all heads of the slice. Under TSP the share is the weights that a rank has; under tp×sp, where all
// ranks of the axis have the slice's weights, it is a part of them. Per layer, q is gathered along the sequence axis; new K and V
// go to the rank that caches the position; every rank attends with its cached positions for all heads of the slice; the partial
// results of a head go to the rank in whose share it is and are merged there; W_O and the MLP give partial sums, with one
// all_reduce each over all ranks. The bytes that a rank receives per token depend only on h, n_h, n_kv, d, V, L and the degrees.
#pragma once

#include "core/rank/rank.h"
#include "layers/layout/heads.h"
#include "layers/layout/slice.h"
#include "layers/model/model.h"
#include "layers/schedules/packs.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tsprun::detail {

/// A text that is being decoded: its length so far, and this rank's part of the K/V cache. All ranks call the same methods with
/// the same arguments.
class Decoder {
 public:
  /// Allocates the cache for `positions` tokens in all. `rank` and `model` are borrowed and must outlive it. Throws
  /// Error(out_of_memory), and Error(refused) for a mesh that why_not() names or more positions than the model has learned ones.
  Decoder(Rank& rank, Model& model, std::size_t positions);
  /// Returns why models on such a mesh can't be decoded; empty if they can.
  static std::string why_not(const Layout& layout);

  /// Runs all tokens of a prompt but the last through the training schedule's forward pass, and the last through step(). Returns
  /// the logits of the token that follows: [V], in the type of sums, the same on every rank, valid until the next call. Throws
  /// Error(refused) for an empty prompt, or one for which the cache has no room.
  ConstTensor prompt(std::span<const Token> ids);
  /// Adds one token and returns the logits of the one that follows, as prompt() does. Throws Error(refused) if the cache is full.
  ConstTensor step(Token token);

  /// Forgets all tokens; the next call must be prompt().
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
    HeadRange kv;  // K/V heads whose first reader within the slice is in the share
  };
  /// Weight rows of this rank's share.
  struct AttentionRows {
    Tensor K, V, Q;
    Tensor KVQ;  // the three, where they lie together; else empty
    Tensor Ot;
  };

  int D() const { return sequence_.size(); }
  int p() const { return sequence_.rank(); }
  const Share& mine() const { return shares_[static_cast<std::size_t>(p())]; }
  bool holds_share_only() const { return row_of(model_.mesh().layout().token_axis()).cuts == Cut::tokens_and_weights; }
  /// Returns the ranks over which the vocabulary's rows are cut.
  AttentionRows attention_rows(std::size_t layer) const;
  /// Returns how the sequence axis cuts the slice's rows of the MLP.
  Chunks mlp_cut() const { return Chunks::balanced(D(), slice_.rows); }
  MlpMatrices mlp_rows(std::size_t layer) const;
  std::size_t cached(std::size_t length) const;
  void fill_cache(std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens);
  void move_rows(const Tensor& to, const ConstTensor& from, const TokenLayout& tokens);
  OwnedTensor embed(Token token);
  OwnedTensor attention(std::size_t layer, const ConstTensor& x);
  void store_new(std::size_t layer, const ConstTensor& kv);
  OwnedTensor attended(std::size_t layer, const Tensor& own_q);
  OwnedTensor merged_heads(const Tensor& parts);
  OwnedTensor mlp(std::size_t layer, const ConstTensor& x);
  OwnedTensor normed(const Tensor& x, const NormWeights& norm);
  void rotate(const Tensor& x);
  void sum_over_ranks(const Tensor& y);
  /// Returns the elements of each rank's part if it has `width` elements per query head of its share.
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
  OwnedTensor rope_;          // [1, d], rotation of the current position; none with learned positions
  OwnedTensor logits_;        // [V]
};

}  // namespace tsprun::detail
