// Embedding, head and loss of plain tensor parallelism: vocabulary rows are cut over the tensor axis, whose ranks all have the
// same tokens. Embedding: every rank fills in the rows that it has, and an all_reduce adds them up. Head: every rank computes the
// logits of its own rows, the log-sum-exps are merged, and dx is summed. The ranks of the sequence axis have copies of the same
// rows, whose gradients are summed.
#pragma once

#include "layers/schedules/vocabulary.h"

namespace tsprun::detail {

/// The vocabulary of meshes with a tensor axis without token slices. Methods are documented in Vocabulary.
class TensorVocabulary final : public Vocabulary {
 public:
  /// Takes this rank's weights, `rows`, which says how the vocabulary is cut over `tensor`, and which of the step's micro-batches
  /// the pass is of. The rank and the communicators are borrowed.
  TensorVocabulary(Rank& rank, Communicator& tensor, Communicator& sequence, const Chunks& rows, const Weights& weights,
                   const MicroBatch& of = {});

  void use(const Weights& weights) override { weights_ = weights; }
  void begin(const TokenLayout& tokens, Category kept) override;
  void end() override;
  void embed(const Tensor& x, const TokenLayout& tokens, std::span<const Token> ids, Category kept) override;
  void embed_backward(const ConstTensor& dx) override;
  std::size_t rows_given() const override { return rows_here_.size(); }
  double head(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens, std::span<const std::int64_t> labels,
              const LogitsSink* logits, std::optional<double> weight) override;
  OwnedTensor head_backward(const ConstTensor& x, const ConstTensor& lse, const TokenLayout& tokens, double weight) override;

 private:
  /// Returns this rank's rows of the head beside its tokens.
  HeadShard shard(const ConstTensor& x, DType sums) const {
    const int me = tensor_.rank();
    return {rank_,   x,    weights_.head,      rows_.offset(me),
            labels_, sums, weights_.logit_cap, weights_.head_bias.slice(rows_.offset(me), rows_.count(me))};
  }
  void sum_over_tensor(const Tensor& x, DType travelling, Purpose purpose);
  void sum_over_sequence(const Tensor& gradient, Purpose purpose);

  Rank& rank_;
  Communicator& tensor_;
  Communicator& sequence_;
  Chunks rows_;
  Weights weights_;
  MicroBatch micro_batch_;

  ListMemory label_memory_;
  std::span<std::int64_t> labels_;        // of this rank's tokens
  std::vector<std::uint32_t> positions_;  // this rank's tokens whose embedding row is here
  std::vector<std::uint32_t> rows_here_;  // the row of each, among this rank's rows
  std::vector<std::size_t> row_numbers_;  // b·S + s of this rank's tokens, if logits are asked for
  Work summing_head_;
};

}  // namespace tsprun::detail
