// Blocks computed with all weights of a sublayer at once: those of the whole model (one rank, dp, sp, zero3) or of a slice of
// heads and rows (tp). Tokens may be cut over a sequence axis; attention is then one of layers/schedules/sp. SublayerWeights
// decides where weights lie between visits, and how their gradients are summed.
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
#include "layers/schedules/sublayer_weights.h"

#include <cstddef>
#include <memory>
#include <optional>

namespace tsprun::detail {

/// The strategy of sp and zero3. Methods are documented in Strategy.
class Dense final : public Strategy {
 public:
  /// Borrows `rank` and `sequence`, the ranks that share a sequence, which all have the same slice. Throws Error(refused) for
  /// heads that the exchange can't cut.
  Dense(Rank& rank, Communicator& sequence, const StrategyOptions& options, const BlockSlice& slice, SequenceExchange exchange,
        std::unique_ptr<SublayerWeights> weights);

  PackPlan attention_pack(std::size_t layer) const override;
  PackPlan mlp_pack(std::size_t layer) const override;
  SavedSizes saved_sizes(const ModelConfig& config, const TokenLayout& tokens) const override;

  void drop_attention(const kernels::AttentionDropout& of) override { attention_->drop(of); }

  void begin_forward(const ParameterStore& store, const TokenLayout& tokens, Visits& visits) override;
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward(const MicroBatch& of) override;
  void begin_block_backward(std::size_t layer, const AttentionSaved& attention) override;
  void mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) override;
  void end() override;

 private:
  ComputeStream& compute() const { return rank_.compute(); }
  OwnedTensor step(DType of, std::span<const std::size_t> sizes, std::string_view what) const {
    return rank_.tensor(Category::workspace, of, sizes, what);
  }
  void begin_attention(const AttentionSaved& saved);
  void project(const AttentionHeads& heads, const ConstTensor& X, const Tensor& rows, std::size_t layer);
  Tensor gradients_of(std::size_t pack);
  void gradients_written(std::size_t pack);
  void tell_untold();
  BlockBiases biases(std::size_t layer) const;

  Rank& rank_;
  Communicator& sequence_;
  ModelConfig config_;
  DType dtype_;
  DType sums_;
  BlockSlice slice_;
  std::unique_ptr<SequenceAttention> attention_;
  std::unique_ptr<SublayerWeights> weights_;
  const ParameterStore* store_ = nullptr;  // parameters of the current pass
  const TokenLayout* tokens_ = nullptr;
  Visits* visits_ = nullptr;
  MicroBatch micro_batch_;                 // of the current backward pass
  std::optional<std::size_t> untold_;      // a pack whose gradients were written and will be complete later
  const AttentionSaved* below_ = nullptr;  // what the current block's attention saved, in the MLP's backward pass
};

}  // namespace tsprun::detail
