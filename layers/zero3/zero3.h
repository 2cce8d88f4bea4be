// ZeRO-3 with sequence parallelism over the same ranks: every rank keeps 1/D of each sublayer's weights, gradients and optimizer
// states, and 1/D of the tokens. A sublayer's weights are gathered whole for its visit, while the one before is computed; K and V
// are gathered along the sequence (layers/sp); gradients are summed to their owners while the next sublayer is computed.
//
//   compute     attention 0 | MLP 0       | attention 1 | …          backward   … | MLP 0       | attention 0
//   weights     MLP 0       | attention 1 | MLP 1       | …                     … | attention 0 |
//   gradients                                                                   … | attention 1 | MLP 0       | attention 0
//
// The honest competitor of TSP: the same persistent memory and the same bytes; its transients are whole sublayers' weights and
// gradients instead of shards, and all of the MLP's columns at once. Rows of a pack are spread so that shards differ by at most
// one row, whatever heads and columns they belong to, so any number of ranks will do.
#pragma once

#include "layers/dense.h"
#include "layers/packs.h"
#include "layers/zero3/shards.h"

namespace tsprun {

struct Zero3Options {
  ModelConfig config;
  DType dtype = DType::f32;
  std::size_t kv_bucket_heads = 0;  ///< K/V heads that are gathered at a time; 0: as gathered attention chooses
};

class Zero3 final : public Dense {
 public:
  /// `rank` and `axis` must outlive it.
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
  /// Where a pack's rows lie: this rank's part, and the whole while it is visited.
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
  const AttentionSaved* below_ = nullptr;  // of the present block while its MLP's backward pass goes on
  ScatteredGradients scattered_;
};

}  // namespace tsprun
