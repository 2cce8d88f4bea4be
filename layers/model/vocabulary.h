// Embedding, head and loss of a model whose vocabulary rows are cut over the ranks of an axis.
//
// Embedding: every rank knows all ids of the batch, so it knows which of its rows each other rank needs; rows travel by
// all_to_all, their gradients the same way back. Head: either the shards of W travel round the ring while every rank keeps an
// online log-sum-exp of its own tokens, or the tokens' x is gathered and every rank computes its shard's part of the log-sum-exp:
// whichever moves less.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/data.h"
#include "layers/model/parameter_store.h"
#include "layers/model/token_layout.h"
#include "layers/ring.h"
#include "layers/theory/traffic.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tsprun {

/// Logits of some tokens: `rows` are their numbers b·S + s in natural order, `logits` [rows, ids] of the type of sums, for token
/// ids first_id, first_id + 1, …
using LogitsSink = std::function<void(std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& logits)>;

/// What is kept of the ids and labels of one token.
inline constexpr std::uint64_t kTokenBytes = sizeof(std::uint32_t) + sizeof(std::int64_t);

/// What every way of cutting a vocabulary over ranks does.
class Vocabulary {
 public:
  /// `embedding` and `head`: this rank's rows [V_p, h] and their gradients (no dims without training); the same tensors if tied.
  struct Weights {
    Tensor embedding;
    Tensor embedding_gradient;
    Tensor head;
    Tensor head_gradient;
    bool tied = false;
  };

  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  virtual ~Vocabulary() = default;

  /// x [rows, h] = rows of the embedding for this rank's tokens. `ids` [B, S] in natural order; of a phantom they may be empty,
  /// and likewise labels: as if all ids were equally frequent. `kept`: what the memory of this rank's ids and labels counts as.
  virtual void embed(const Tensor& x, const TokenLayout& tokens, std::span<const Token> ids, Category kept) = 0;
  /// The gradients of the embedding's rows: of dx [rows, h], to their owners. Replaces the embedding's gradient, or adds to it
  /// where head and embedding are tied. After embed() of the same tokens.
  virtual void embed_backward(const ConstTensor& dx) = 0;
  /// Of the last tokens, those whose row of the embedding is one of this rank's: the one thing about the ids on which the memory
  /// of a pass depends.
  virtual std::size_t rows_given() const = 0;

  /// A part of the sum over predicted tokens of (log-sum-exp − label's logit) that is right when added up over the ranks.
  /// x [rows, h]; `labels` [B, S] in natural order; `lse` [rows] is written, for head_backward().
  virtual double head(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens, std::span<const std::int64_t> labels,
                      const LogitsSink* logits, bool keep) = 0;
  /// dx [rows, h] of the type of sums, and the head's gradient, both replaced. `weight`: one over the number of predicted tokens.
  /// After head(…, keep = true) of the same tokens.
  virtual void head_backward(const Tensor& dx, const ConstTensor& x, const ConstTensor& lse, const TokenLayout& tokens,
                             double weight) = 0;
};

/// Over ranks with tokens of their own: rows of the embedding go where their tokens are; so does the head, or the tokens to it.
class ExchangedVocabulary final : public Vocabulary {
 public:
  /// `rows`: how the vocabulary is cut over the axis.
  ExchangedVocabulary(Rank& rank, Communicator& axis, const Chunks& rows, theory::HeadPlan plan, const Weights& weights);

  void embed(const Tensor& x, const TokenLayout& tokens, std::span<const Token> ids, Category kept) override;
  void embed_backward(const ConstTensor& dx) override;
  std::size_t rows_given() const override { return rows_for_others_; }
  double head(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens, std::span<const std::int64_t> labels,
              const LogitsSink* logits, bool keep) override;
  void head_backward(const Tensor& dx, const ConstTensor& x, const ConstTensor& lse, const TokenLayout& tokens,
                     double weight) override;

 private:
  RingWeights rotation();
  double head_rotated(const ConstTensor& x, const Tensor& lse, const LogitsSink* logits);
  double head_gathered(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens, const LogitsSink* logits, bool keep);
  void head_backward_rotated(const Tensor& dx, const ConstTensor& x, const ConstTensor& lse, double weight);
  void head_backward_gathered(const Tensor& dx, const TokenLayout& tokens, double weight);
  void plan_rows(const TokenLayout& tokens, std::span<const Token> ids, Category kept);
  std::size_t hidden() const { return weights_.embedding.size(1); }
  int size() const { return axis_.size(); }
  int me() const { return axis_.rank(); }

  Rank& rank_;
  Communicator& axis_;
  Chunks rows_;
  theory::HeadPlan plan_;
  Weights weights_;

  // The embedding's exchange, by rank of the axis: which of my rows it needs, in its order; how many of its rows I need.
  std::vector<std::vector<std::uint32_t>> wanted_;
  std::vector<std::size_t> needed_;
  std::size_t rows_for_others_ = 0;  // of all in wanted_
  bool counted_ = false;             // from ids, not as if they were equally frequent

  // Of this rank's tokens, kTokenBytes each: the order in which their rows come from the ranks, and their labels.
  HeapBlock token_memory_;
  std::span<std::uint32_t> order_;
  std::span<std::int64_t> own_labels_;

  std::vector<std::int64_t> all_labels_;  // of all tokens in rank order, where X is gathered
  std::span<const std::int64_t> labels_;  // one of both
  std::vector<std::size_t> row_numbers_;  // b·S + s of the same, if somebody wants logits
  OwnedTensor gathered_x_;                // [BS, h] in rank order, kept from head() to head_backward()
  OwnedTensor gathered_lse_;              // [BS]
};

/// Rows of logits that are computed at a time for so many ids: 8 MiB, at least 64 rows.
std::size_t logit_tile_rows(std::size_t ids, DType sums);

}  // namespace tsprun
