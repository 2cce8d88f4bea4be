// ZeRO-3 with sequence parallelism over the same ranks: every rank keeps 1/D of each sublayer's weights, gradients and optimizer
// states, and 1/D of the tokens. The weights of a sublayer are gathered whole while the sublayer before is computed; K and V are
// gathered along the sequence (layers/schedules/sp); gradients are summed at their owners while the next sublayer is computed.
//
//   compute     attention 0 | MLP 0       | attention 1 | …          backward   … | MLP 0       | attention 0
//   weights     MLP 0       | attention 1 | MLP 1       | …                     … | attention 0 |
//   gradients                                                                   … | attention 1 | MLP 0       | attention 0
//
// This is the fair baseline for TSP: it needs the same persistent memory and moves the same bytes, but its transients are the
// weights and gradients of whole sublayers instead of shards, and all columns of the MLP at once. Rows of a pack are spread so
// that shards differ by at most one row, whatever heads and columns they belong to, so any number of ranks works.
#pragma once

#include "layers/schedules/dense.h"
#include "layers/schedules/packs.h"
#include "layers/schedules/zero3/shards.h"

namespace tsprun::detail {

/// Options of the strategy.
struct Zero3Options {
  ModelConfig config;
  DType dtype = DType::f32;
  std::size_t kv_bucket_heads = 0;  ///< K/V heads gathered at a time; 0: chosen by gather attention
};

/// The strategy of Scheme::zero3. Methods are documented in Strategy and Dense.
class Zero3 final : public Dense {
 public:
  /// Borrows `rank` and `axis`, which must outlive it.
  Zero3(Rank& rank, Communicator& axis, const Zero3Options& options);

  PackPlan attention_pack(std::size_t layer) const override;
  PackPlan mlp_pack(std::size_t layer) const override;

  void begin_forward(const ParameterStore& store, const TokenLayout& tokens) override;
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward() override;
  void begin_block_backward(std::size_t /*layer*/, const AttentionSaved& attention) override { below_ = &attention; }
  void mlp_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                    const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                          const AttentionSaved& saved) override;
  void end() override;

 private:
  /// The cut of a pack's rows over the ranks, and the whole pack while it is visited.
  struct Sublayer {
    Chunks rows;
    GatheredPack gathered;
  };

  Sublayer& sublayer(std::size_t pack) { return is_attention_pack(pack) ? attention_ : mlp_; }
  void fetch(std::size_t pack);

  Tensor weights(std::size_t pack) override { return sublayer(pack).gathered.wait(rank()); }
  void weights_used(std::size_t pack) override;
  Tensor gradients(std::size_t pack) override;
  void gradients_written(std::size_t pack) override;

  Sublayer attention_;
  Sublayer mlp_;
  const AttentionSaved* below_ = nullptr;  // what the current block's attention saved, during the MLP's backward pass
  ScatteredGradients scattered_;
};

}  // namespace tsprun::detail
