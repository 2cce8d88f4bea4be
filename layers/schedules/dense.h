// Blocks computed with all weights of a sublayer at once: those of the whole model (one rank, dp, sp, zero3) or of a slice of
// heads and rows (tp). Tokens may be cut over a sequence axis; attention is then one of layers/schedules/sp. SublayerWeights
// decides where weights lie between visits, and how their gradients are summed.
//
//   attention   O = softmax(Q·Kᵀ)·V of the slice's heads;  y = O·W_O
//   MLP         y = (σ(x·W1ᵀ) ∘ (x·W3ᵀ))·W2ᵀ of the slice's rows, or without a gate (layers/schedules/mlp_columns.h)
//
// Under tp, y and dx are this rank's terms of a sum: layers/schedules/tp/tensor_parallel.h.
#pragma once

#include "layers/io/by_layer.h"
#include "layers/layout/slice.h"
#include "layers/schedules/sp/sequence_attention.h"
#include "layers/schedules/strategy.h"
#include "layers/schedules/sublayer_weights.h"

#include <cstddef>
#include <memory>

namespace tsprun::detail {

/// The strategy of sp and zero3. Methods are documented in Strategy.
class Dense final : public Strategy {
 public:
  /// Borrows `rank` and `sequence`, the ranks that share a sequence, which all have the same slice of each block, that of `at`.
  /// Throws Error(refused) for heads that the exchange can't cut.
  Dense(Rank& rank, Communicator& sequence, const StrategyOptions& options, SlicePlace at, SequenceExchange exchange,
        std::unique_ptr<SublayerWeights> weights);

  SavedSizes saved_sizes(std::size_t layer, const TokenLayout& tokens) const override;
  std::unique_ptr<StrategyPass> begin(const PassInputs& of) const override;

 private:
  class Pass;
  /// This rank's part of a layer.
  struct OfLayer {
    BlockSlice slice;
    std::size_t head_dim;
    std::unique_ptr<SequenceAttention> attention;
  };

  Rank& rank_;
  Communicator& sequence_;
  ModelConfig config_;
  DType dtype_;
  DType sums_;
  ByLayer<OfLayer> layers_;
  std::unique_ptr<SublayerWeights> weights_;
};

}  // namespace tsprun::detail
