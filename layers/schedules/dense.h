// Blocks computed with all weights of a sublayer at once: those of the whole model (one rank, dp, sp, zero3) or of a slice of
// heads and rows (tp). Tokens may be cut over a sequence axis; attention is then one of layers/schedules/sp.
//
// In this class every rank stores the weights that it computes with, and the gradients are summed over the sequence axis,
// sublayer by sublayer, while the backward pass goes on. A derived class that stores the weights elsewhere
// (layers/schedules/zero3) overrides where a visit finds them.
//
//   attention   O = softmax(Q·Kᵀ)·V of the slice's heads;  y = O·W_O
//   MLP         y = (σ(x·W1ᵀ) ∘ (x·W3ᵀ))·W2ᵀ of the slice's rows, or without a gate (layers/schedules/mlp_columns.h)
//
// Under tp, y and dx are this rank's terms of a sum: layers/schedules/tp/tensor_parallel.h.
#pragma once

#include "layers/layout/slice.h"
#include "layers/schedules/biases.h"
#include "layers/schedules/sp/sequence_attention.h"
#include "layers/schedules/strategy.h"

#include <memory>
#include <vector>

namespace tsprun::detail {

/// Options of the strategy: what it computes, and how its attention exchanges K and V.
struct DenseOptions {
  ModelConfig config;
  DType dtype = DType::f32;
  BlockSlice slice;
  SequenceExchange exchange = SequenceExchange::gather;
  std::size_t kv_bucket_heads = 0;  ///< gather only: K/V heads gathered at a time; 0: chosen
};

/// The strategy of Scheme::dense. Methods are documented in Strategy.
class Dense : public Strategy {
 public:
  /// Borrows `rank` and `sequence`, the ranks that share a sequence, which all have the same slice. Throws Error(refused) for
  /// heads that the exchange can't cut.
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
  /// Returns all rows of a sublayer's pack as soon as they have arrived; valid until weights_used().
  virtual Tensor weights(std::size_t pack) { return store_->values(pack); }
  /// Called when the current visit doesn't need the pack's weights any more.
  virtual void weights_used(std::size_t /*pack*/) {}
  /// Returns where this rank's gradients of all rows of the pack are to be written.
  virtual Tensor gradients(std::size_t pack) { return store_->gradients(pack); }
  /// Called when the gradients are written: begins the sum over the ranks that have other tokens.
  virtual void gradients_written(std::size_t pack);
  /// Begins to move K and V if they were kept.
  void begin_attention(const AttentionSaved& saved);

  Rank& rank() const { return rank_; }
  Communicator& sequence() const { return sequence_; }
  const ModelConfig& config() const { return config_; }
  /// The parameters of the current pass.
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
  /// Returns the biases of the slice's heads and rows.
  BlockBiases biases(std::size_t layer) const;

  Rank& rank_;
  Communicator& sequence_;
  ModelConfig config_;
  DType dtype_;
  DType sums_;
  BlockSlice slice_;
  std::unique_ptr<SequenceAttention> attention_;
  const ParameterStore* store_ = nullptr;  // parameters of the current pass
  const TokenLayout* tokens_ = nullptr;
  std::vector<Work> summing_;
};

}  // namespace tsprun::detail
