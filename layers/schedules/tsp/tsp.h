// TSP: tensor and sequence parallelism folded onto one axis (arXiv 2604.26294). Every rank keeps 1/D of the weights and 1/D of
// the tokens; weights travel to the tokens, and K and V are gathered along the sequence. On one rank it is the plain transformer.
#pragma once

#include "layers/schedules/strategy.h"
#include "layers/schedules/tsp/attention.h"
#include "layers/schedules/tsp/axis.h"
#include "layers/schedules/tsp/mlp.h"

#include <cstddef>
#include <optional>

namespace tsprun::detail {

/// The strategy of tsp. Methods are documented in Strategy.
class Tsp final : public Strategy {
 public:
  /// Borrows `rank` and `axis`, which must outlive it. Throws Error(refused) if the axis doesn't divide the query heads.
  /// `slice`, which must be uniform(), is what the ranks of the axis have of each block together.
  Tsp(Rank& rank, Communicator& axis, const StrategyOptions& options, const BlockSlice& slice)
      : axis_(rank, axis, options, slice), attention_(axis_), mlp_(axis_) {}

  PackPlan attention_pack(std::size_t layer) const override { return attention_.pack(layer); }
  PackPlan mlp_pack(std::size_t layer) const override { return mlp_.pack(layer); }

  void drop_attention(const kernels::AttentionDropout& of) override { axis_.dropout = of; }

  void begin_forward(const ParameterStore& store, const TokenLayout& tokens, Visits& visits) override;
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward(const MicroBatch& of) override { axis_.micro_batch = of; }
  void begin_block_backward(std::size_t /*layer*/, const AttentionSaved& attention) override { below_ = &attention; }
  void mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) override;
  void end() override;

 private:
  void settle_attention();
  void tell(std::size_t pack) const;

  TspAxis axis_;
  TspAttention attention_;
  TspMlp mlp_;
  Visits* visits_ = nullptr;
  std::optional<std::size_t> untold_;      // an attention pack whose gradients are complete when attention_ has settled
  const AttentionSaved* below_ = nullptr;  // what the attention of the current block saved, in the backward pass
};

}  // namespace tsprun::detail
