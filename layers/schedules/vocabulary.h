// Embedding, head and loss of a model whose vocabulary rows are cut over the ranks of an axis.
//
// Embedding: every rank knows all ids of the batch, so it knows which of its rows each other rank needs. Rows travel by
// all_to_all, and their gradients the same way back. Head: either the shards of W travel round a ring while every rank keeps an
// online log-sum-exp of its own tokens, or x of all tokens is gathered and every rank computes its shard's part of the
// log-sum-exp. The model uses what moves fewer bytes (head_plan()). Gradients of logits need the log-sum-exp of the whole
// vocabulary. A rank that has all of it knows that after each tile of logits, so in training it computes the tile's gradients at
// once, in the forward pass. Other ranks compute the logits again in the backward pass, as all of them take too much memory.
#pragma once

#include "core/rank/rank.h"
#include "layers/io/data.h"
#include "layers/layout/token_layout.h"
#include "layers/parameters/parameter_store.h"
#include "layers/schedules/biases.h"
#include "layers/schedules/head_plan.h"
#include "layers/schedules/micro_batch.h"
#include "layers/schedules/ring.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Receives logits of some tokens. `rows` are their numbers b·S + s in natural order; `logits` [rows, ids], in the type of sums,
/// are for token ids first_id, first_id + 1, …
using LogitsSink = std::function<void(std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& logits)>;

/// Bytes kept of the id and label of one token, by the ways that keep both (TensorVocabulary keeps labels alone).
inline constexpr std::uint64_t kTokenBytes = sizeof(std::uint32_t) + sizeof(std::int64_t);

/// The interface of every way of cutting a vocabulary over ranks: embedding, head and loss of one pass, and what is kept between
/// its calls. Several passes, of several micro-batches, may be under way at once. A pass frees what it keeps when it is
/// destroyed; no message of it is under way between calls, but for a sum over copies, from head_backward() to embed_backward().
/// Methods are collective over the ranks of the axis, which make the calls of all passes in the same order.
class Vocabulary {
 public:
  /// Rows of embedding and head that this rank has, [V_p, h], and their gradients (no dims without training). If the model ties
  /// them, both are the same tensors.
  struct Weights {
    Tensor embedding = {};
    Tensor embedding_gradient = {};
    Tensor head = {};
    Tensor head_gradient = {};
    bool tied = false;
    double logit_cap = 0;  ///< ModelSpec::logit_cap
    Bias head_bias = {};   ///< of the whole vocabulary
  };

  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  virtual ~Vocabulary() = default;

  /// Takes other tensors of weights and gradients from now on, those that the next call needs; others may have no dims. Where
  /// data ranks share weights, they are gathered for each call (own_packs.h).
  virtual void use(const Weights& weights) = 0;
  /// Makes room for ids and labels of this rank's tokens. embed() does it, too; where another stage of a pipeline embeds, call it
  /// before head(). `kept`: as in embed().
  virtual void begin(const TokenLayout& tokens, Category kept) = 0;
  /// Waits for what head_backward() has begun. embed_backward() does it, too.
  virtual void end() {}
  /// Writes the embedding of this rank's tokens to x [rows, h]. `ids` [B, S] in natural order. On a phantom, without labels, no
  /// ids stand for ids that are equally frequent, and one for that id at every token. `kept`: memory category of what this rank
  /// keeps of them. Throws Error(refused) for ids outside of the vocabulary.
  virtual void embed(const Tensor& x, const TokenLayout& tokens, std::span<const Token> ids, Category kept) = 0;
  /// Sends the gradients dx [rows, h] of the embedding's rows to their owners. Replaces the embedding's gradient in the first
  /// micro-batch, and adds to it in later ones, or if head and embedding are tied. Call it after embed() of the same tokens, and
  /// if tied after head_backward().
  virtual void embed_backward(const ConstTensor& dx) = 0;
  /// Returns how many tokens of embed() have one of this rank's embedding rows. The memory of a pass depends on the ids
  /// through this number only.
  virtual std::size_t rows_given() const = 0;

  /// Returns this rank's part of the sum over predicted tokens of (log-sum-exp − the label's logit); the sum of all ranks' parts
  /// is the whole. x [rows, h]; `labels` [B, S] in natural order; writes `lse` [rows] for head_backward(). `logits` may be null.
  /// `weight`: 1 / number of predicted tokens, if head_backward() follows, else none. With a weight there are no `logits`, and
  /// the head's gradient may be complete already.
  virtual double head(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens, std::span<const std::int64_t> labels,
                      const LogitsSink* logits, std::optional<double> weight) = 0;
  /// Returns dx [rows, h] in the type of sums, which the caller owns, and replaces the head's gradient in the
  /// first micro-batch, or adds to it. Call it once after head()
  /// of the same tokens with the same weight.
  virtual OwnedTensor head_backward(const ConstTensor& x, const ConstTensor& lse, const TokenLayout& tokens, double weight) = 0;
};

/// One shard of the head beside some tokens: what the streamed loss computes with. Logits are made a tile of rows at a time and
/// never exist as a whole; how many rows, logit_tile_rows() says. The struct owns nothing.
struct HeadShard {
  Rank& rank;
  ConstTensor x;  ///< [rows, h]
  ConstTensor W;  ///< [ids, h], the vocabulary's rows from first_id on
  std::size_t first_id;
  std::span<const std::int64_t> labels;  ///< [rows]
  DType sums;
  double logit_cap = 0;  ///< soft cap of logits; 0: none
  Bias bias = {};        ///< of the shard's ids

  /// Takes the shard's logits into the running maxima, sums and labels' logits, each [rows]. `logits` may be null; `numbers` are
  /// then not read.
  void add_to_loss(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit, const LogitsSink* logits,
                   std::span<const std::size_t> numbers) const;
  /// Returns this rank's part of the sum of losses where every rank of `axis` has all of these tokens and a shard of its own:
  /// merges the shards' log-sum-exps into `lse` [rows], each rank those of counts[r] rows, one after another. `logits` and
  /// `numbers` as above.
  double merged_loss(Communicator& axis, const std::vector<std::size_t>& counts, const Tensor& lse, const LogitsSink* logits,
                     std::span<const std::size_t> numbers) const;
  /// Returns the sum of the tokens' losses, writes lse [rows], replaces dx, and writes dW as backward() does. The shard must be
  /// the whole vocabulary. Every logit is computed once.
  double loss_and_gradients(const Tensor& dx, const Tensor& dW, const Tensor& lse, double weight, kernels::Write into_dW) const;
  /// Computes the shard's gradient dW [ids, h], and its part of x's, dx [rows, h]; each is replaced or added to. `weight`: as in
  /// Vocabulary::head().
  void backward(const Tensor& dx, const Tensor& dW, const ConstTensor& lse, double weight, kernels::Write into_dx,
                kernels::Write into_dW) const;

 private:
  /// Does backward()'s work for the tile of logits that begins at `row`, and overwrites the tile.
  void add_gradients(const Tensor& tile, std::size_t row, const Tensor& dx, const Tensor& dW, const ConstTensor& lse,
                     double weight, kernels::Write into_dx, kernels::Write into_dW) const;
};

/// The vocabulary over ranks that have different tokens: rows of the embedding go to the ranks of their tokens, and either the
/// head's shards go to the tokens or the tokens to the shards.
class ExchangedVocabulary final : public Vocabulary {
 public:
  /// Takes this rank's weights, `rows`, which says how the vocabulary is cut over the axis, how the head is computed, and which
  /// of the step's micro-batches the pass is of. The rank and the axis are borrowed.
  ExchangedVocabulary(Rank& rank, Communicator& axis, const Chunks& rows, HeadPlan plan, const Weights& weights,
                      const MicroBatch& of = {});

  void use(const Weights& weights) override { weights_ = weights; }
  void begin(const TokenLayout& tokens, Category kept) override;
  void embed(const Tensor& x, const TokenLayout& tokens, std::span<const Token> ids, Category kept) override;
  void embed_backward(const ConstTensor& dx) override;
  std::size_t rows_given() const override { return rows_for_others_; }
  double head(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens, std::span<const std::int64_t> labels,
              const LogitsSink* logits, std::optional<double> weight) override;
  OwnedTensor head_backward(const ConstTensor& x, const ConstTensor& lse, const TokenLayout& tokens, double weight) override;

 private:
  RingShards rotation();
  /// Returns the head's rows of one rank of the axis beside the tokens of labels_.
  HeadShard shard_of(const ConstTensor& x, const ConstTensor& W, int owner, DType sums) const;
  double head_rotated(const ConstTensor& x, const Tensor& lse, const LogitsSink* logits);
  double head_gathered(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens, const LogitsSink* logits, bool keep);
  OwnedTensor head_backward_rotated(const ConstTensor& x, const ConstTensor& lse, double weight);
  OwnedTensor head_backward_gathered(const ConstTensor& x, const TokenLayout& tokens, double weight);
  void plan_rows(const TokenLayout& tokens, std::span<const Token> ids);
  /// Fills wanted_ and needed_ for a phantom, whose tokens have one id, or without one all equally often on every rank.
  void suppose_rows(const TokenLayout& tokens, std::span<const Token> ids);
  /// Fills wanted_, needed_ and order_ from the ids of all tokens.
  void find_rows(const TokenLayout& tokens, std::span<const Token> ids);
  int size() const { return axis_.size(); }
  int me() const { return axis_.rank(); }

  Rank& rank_;
  Communicator& axis_;
  Chunks rows_;
  HeadPlan plan_;
  Weights weights_;
  MicroBatch micro_batch_;

  // The embedding's exchange, by rank of the axis: which of this rank's rows that rank needs, in the order of its tokens, and
  // how many of that rank's rows this rank needs.
  std::vector<std::vector<std::uint32_t>> wanted_;
  std::vector<std::size_t> needed_;
  std::size_t rows_for_others_ = 0;  // number of rows in wanted_

  // For this rank's tokens, kTokenBytes per token: the order in which their rows arrive from the ranks, and their labels.
  ListMemory token_memory_;
  std::span<std::uint32_t> order_;
  std::span<std::int64_t> own_labels_;

  std::vector<std::int64_t> all_labels_;  // of all tokens in rank order, if X is gathered
  std::span<const std::int64_t> labels_;  // own_labels_ or all_labels_
  std::vector<std::size_t> row_numbers_;  // b·S + s of the same tokens, if logits are asked for
  OwnedTensor gathered_x_;                // [BS, h] in rank order, kept from head() to head_backward()
  OwnedTensor gathered_lse_;              // [BS]
  OwnedTensor head_dx_;                   // [rows, h], kept likewise where this rank has the whole vocabulary
};

/// Returns memory for the gradient of the head's input x [rows, h], in the type `sums`.
OwnedTensor head_input_gradient(Rank& rank, const ConstTensor& x, DType sums);

/// Returns how many rows of logits of `ids` elements are computed at a time: as many as `bytes` hold, at least 64.
std::size_t logit_tile_rows(std::size_t bytes, std::size_t ids, DType sums);

}  // namespace tsprun::detail
