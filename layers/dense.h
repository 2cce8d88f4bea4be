// Blocks computed with all of a sublayer's weights at once: of the whole model (one rank, dp, sp, zero3) or of a slice of heads
// and rows (tp). Tokens may be cut over a sequence axis; then attention is one of layers/sp.
//
// Here the weights are where they are computed with, and every rank's gradients of the same weights are summed over the axis, a
// sublayer at a time, while the backward pass goes on. Whoever keeps them elsewhere (layers/zero3) says where a visit finds them.
//
//   attention   O = softmax(Q·Kᵀ)·V of the slice's heads;  y = O·W_O
//   MLP         y = (σ(x·W1ᵀ) ∘ (x·W3ᵀ))·W2ᵀ of the slice's rows, or without a gate (layers/mlp_columns.h)
//
// Under tp, y and dx are this rank's terms of a sum: layers/tp/tensor_parallel.h.
#pragma once

#include "layers/biases.h"
#include "layers/model/strategy.h"
#include "layers/slice.h"
#include "layers/sp/sequence_attention.h"

#include <memory>
#include <vector>

namespace tsprun {

struct DenseOptions {
  ModelConfig config;
  DType dtype = DType::f32;
  BlockSlice slice;
  SequenceExchange exchange = SequenceExchange::gather;
  std::size_t kv_bucket_heads = 0;  ///< of SequenceExchange::gather; 0: as it chooses
};

class Dense : public Strategy {
 public:
  /// `sequence`: the ranks that share a sequence, all with the same slice. All is borrowed. Throws Error(refused) for heads that
  /// the exchange can't cut.
  Dense(Rank& rank, Communicator& sequence, const DenseOptions& options);

  PackPlan attention_pack(std::size_t layer) const override;
  PackPlan mlp_pack(std::size_t layer) const override;
  SavedSizes saved_sizes(const ModelConfig& config, const TokenLayout& tokens) const override;

  void drop_attention(const kernels::AttentionDropout& of) override { attention_->drop(of); }

  void begin_forward(const ParameterStore& store, const TokenLayout& tokens) override;
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward() override {}
  void begin_block_backward(std::size_t /*layer*/, const AttentionSaved& attention) override { begin_attention(attention); }
  void mlp_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                    const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                          const AttentionSaved& saved) override;
  void end() override;

 protected:
  /// All rows of a sublayer's pack, once they are here; until weights_used().
  virtual Tensor weights(std::size_t pack) { return store_->values(pack); }
  /// This visit needs them no more.
  virtual void weights_used(std::size_t /*pack*/) {}
  /// Where this rank's gradients of the pack's rows are to be written, all of them.
  virtual Tensor gradients(std::size_t pack) { return store_->gradients(pack); }
  /// They are: the sum over the ranks with other tokens begins.
  virtual void gradients_written(std::size_t pack);
  /// K and V that were kept begin to move.
  void begin_attention(const AttentionSaved& saved);

  Rank& rank() const { return rank_; }
  Communicator& sequence() const { return sequence_; }
  const ModelConfig& config() const { return config_; }
  /// Of the present pass.
  const ParameterStore& store() const { return *store_; }

 private:
  struct Heads;

  ComputeStream& compute() const { return rank_.compute(); }
  OwnedTensor step(DType of, std::span<const std::size_t> sizes, std::string_view what) const {
    return rank_.tensor(Category::workspace, of, sizes, what);
  }
  OwnedTensor step(DType of, std::initializer_list<std::size_t> sizes, std::string_view what) const {
    return rank_.tensor(Category::workspace, of, sizes, what);
  }
  Heads heads_room(const AttentionSaved& saved) const;
  void project(Heads& heads, const ConstTensor& X, const Tensor& rows, std::size_t layer);
  /// Of the slice's heads and rows.
  BlockBiases biases(std::size_t layer) const;

  Rank& rank_;
  Communicator& sequence_;
  ModelConfig config_;
  DType dtype_;
  DType sums_;
  BlockSlice slice_;
  std::unique_ptr<SequenceAttention> attention_;
  const ParameterStore* store_ = nullptr;  // of the present pass, as tokens_
  const TokenLayout* tokens_ = nullptr;
  std::vector<Work> summing_;
};

}  // namespace tsprun
