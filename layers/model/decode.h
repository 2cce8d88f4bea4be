// Decoding texts token by token, on any mesh: activations move, weights never do (docs/algorithms.md, "Decoding"). Several texts
// are decoded together, a row of x each; they may have different lengths, and none sees another. The replicas of a data axis
// decode texts of their own.
//
// Every rank has the tokens' x. A tensor rank works with the heads of its slice (slice.h), and the Σ ranks of its sequence axis
// divide that work: each computes q, k, v, W_O and MLP rows of its *share*, and caches K and V of the positions s with
// s mod Σ = its rank, for all heads of the slice. Under TSP the share is the weights that a rank has; under tp×sp, where all
// ranks of the axis have the slice's weights, it is a part of them. Per layer, q is gathered along the sequence axis; new K and V
// go to the rank that caches the position; every rank attends with its cached positions for all heads of the slice; the partial
// results of a head go to the rank in whose share it is and are merged there; W_O and the MLP give partial sums, with one
// all_reduce each over all ranks. The bytes that a rank receives per token depend only on h, n_h, n_kv, d, V, L and the degrees.
#pragma once

#include "core/rank/rank.h"
#include "layers/io/by_layer.h"
#include "layers/layout/heads.h"
#include "layers/layout/slice.h"
#include "layers/model/kv_cache.h"
#include "layers/model/model.h"
#include "layers/schedules/packs.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail {

/// A text: a prompt, and the tokens that were put in after it.
struct DecodedText {
  std::vector<Token> prompt;
  std::vector<Token> added;
  std::size_t room = 0;  ///< tokens for which the cache has room, if they are more than these
};

/// Texts that are being decoded: their lengths so far, and this rank's part of the K/V cache. All ranks of a replica call the
/// same methods with the same arguments.
class Decoder {
 public:
  /// Allocates the cache for as many texts as `positions` has elements, at least one, with so many tokens each, of which it tells
  /// the model (Model::expect()). `rank` and `model` are borrowed and must outlive it. Throws Error(out_of_memory), and
  /// Error(refused) for a mesh that why_not() names or more positions than the model has learned ones.
  Decoder(Rank& rank, Model& model, std::vector<std::size_t> positions);
  /// Returns why models on such a mesh can't be decoded; empty if they can.
  static std::string why_not(const Layout& layout);

  /// Runs all tokens of each text's prompt but the last through the training schedule's forward pass, one text after another, and
  /// the last ones through step(). Returns the logits of the tokens that follow: [texts, V], in the type of sums, the same on
  /// every rank of the replica, valid until the next call. Throws Error(refused) for an empty prompt, or one for which the cache
  /// has no room.
  ConstTensor prompt(std::span<const std::vector<Token>> prompts);
  /// Adds one token to every text and returns the logits of those that follow, as prompt() does. Throws Error(refused) if the
  /// cache of a text is full.
  ConstTensor step(std::span<const Token> tokens);

  /// Forgets all tokens; the next call must be prompt().
  void forget() { std::ranges::fill(lengths_, 0); }

  /// Forgets a text's tokens from number `length` on; step() goes on there. Precondition: length <= length(text).
  void shorten(std::size_t text, std::size_t length) { lengths_[text] = length; }

  std::size_t texts() const { return positions_.size(); }
  std::size_t length(std::size_t text) const { return lengths_[text]; }  ///< tokens so far

 private:
  /// Heads, numbered within the slice, that one rank of the sequence axis computes.
  struct Share {
    HeadRange queries;
    HeadRange kv;  // K/V heads whose first reader within the slice is in the share
  };
  /// Weight rows of this rank's share.
  struct AttentionRows {
    Tensor K, V, Q;
    Tensor KVQ;  // the three, where they lie together; else empty, and so is V in layers without it
    Tensor Ot;
  };

  int D() const { return sequence_.size(); }
  int p() const { return sequence_.rank(); }
  /// A layer's part of this rank's tensor slice, and how the ranks of the sequence axis divide its work.
  struct OfLayer {
    BlockSlice slice;
    std::vector<Share> shares;  // by rank of the sequence axis
    std::size_t d;              // of a head
  };
  const OfLayer& of(std::size_t layer) const { return layers_[layer]; }
  const Share& mine(std::size_t layer) const { return of(layer).shares[static_cast<std::size_t>(p())]; }
  bool holds_share_only() const { return row_of(model_.mesh().layout().token_axis()).cuts == Cut::tokens_and_weights; }
  AttentionRows attention_rows(std::size_t layer) const;
  /// Returns how the sequence axis cuts the slice's rows of the MLP.
  Chunks mlp_cut(std::size_t layer) const { return Chunks::balanced(D(), of(layer).slice.rows); }
  MlpMatrices mlp_rows(std::size_t layer) const;
  OwnedTensor rows_of_table(std::span<const Token> tokens, const Tensor& table);
  OwnedTensor embed(std::span<const Token> tokens);
  void add_positions(const Tensor& x);
  OwnedTensor attention(std::size_t layer, const ConstTensor& x);
  OwnedTensor attended(std::size_t layer, const Tensor& own_q);
  OwnedTensor merged_heads(std::size_t layer, const Tensor& parts);
  OwnedTensor mlp(std::size_t layer, const ConstTensor& x);
  /// Adds a sublayer's result y to x, behind its last bias and its norm.
  void add_result(const Tensor& x, const Tensor& y, const Bias& bias, const NormWeights& norm);
  OwnedTensor normed(const Tensor& x, const NormWeights& norm, double multiplier = 1);
  void sum_over_ranks(const Tensor& y);
  void gather_logits(const Tensor& own);
  std::string where() const;
  /// Returns the elements of each rank's part if it has `width` elements per query head of its share.
  std::vector<std::size_t> by_share(std::size_t layer, std::size_t width) const;
  /// Number of elements of the log-sum-exp of a head's partial attention.
  static constexpr std::size_t kLseNumbers = 2;
  /// Returns the elements of a head's partial attention: O and its log-sum-exp.
  std::size_t part_width(std::size_t layer) const { return of(layer).d + kLseNumbers; }
  OwnedTensor rows(DType dtype, std::size_t width, std::string_view what) {
    return rank_.tensor(Category::workspace, dtype, {texts(), width}, what);
  }

  Rank& rank_;
  Model& model_;
  Communicator& sequence_;
  const ModelConfig& config_;
  DType dtype_;
  DType sums_;
  SlicePlace at_;  // on the tensor axis
  ByLayer<OfLayer> layers_;
  std::vector<std::size_t> positions_;  // for which there is room, by text
  std::vector<std::size_t> lengths_;    // so far, by text
  KvCache cache_;
  RotaryTables rotations_;  // of the current positions, a row for each text
  OwnedTensor logits_;      // [texts, V]
};

}  // namespace tsprun::detail
