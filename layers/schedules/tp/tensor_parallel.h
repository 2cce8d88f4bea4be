// Tensor parallelism (Megatron): every rank of the axis computes a slice of each sublayer, some heads or some rows of the MLP, by
// an inner strategy; the results of the slices are terms of a sum over the axis.
//
//   plain      x of all tokens on every rank          y = all_reduce(slice(x));        dx = all_reduce(slice'(dy))
//   sequence   x of the rank's part of the tokens     X = all_gather(x)                dY = all_gather(dy), X = all_gather(x)
//                                                     y = reduce_scatter(slice(X))     dx = reduce_scatter(slice'(dY))
//
// The second is Megatron's sequence parallelism: norms and residuals work on 1/T of the tokens. Gathered inputs aren't kept,
// which would cost each rank B·S·h elements per sublayer; the backward pass gathers them again (6·BSh·β·ρ bytes where kept inputs
// would need 4·BSh·β·ρ). Messages have the model's dtype, and dx travels while the gradients of the weights are computed. Where
// several ranks have copies of a K/V head (layers/layout/slice.h), its gradients are summed over these ranks.
#pragma once

#include "layers/layout/axes.h"
#include "layers/layout/slice.h"
#include "layers/schedules/strategy.h"

#include <memory>
#include <vector>

namespace tsprun::detail {

/// The strategy of a mesh with a tensor axis. Methods are documented in Strategy.
class TensorParallel final : public Strategy {
 public:
  /// Takes the strategy that computes this rank's slice of each block. `rank` and `tensor` are borrowed. Throws Error(refused)
  /// unless the axis divides the query heads.
  TensorParallel(Rank& rank, Communicator& tensor, TensorExchange exchange, const StrategyOptions& options,
                 std::unique_ptr<Strategy> inner);

  PackPlan attention_pack(std::size_t layer) const override;
  PackPlan mlp_pack(std::size_t layer) const override { return inner_->mlp_pack(layer); }
  SavedSizes saved_sizes(const ModelConfig& config, const TokenLayout& tokens) const override {
    return inner_->saved_sizes(slice_.apply(config), tokens);
  }

  void drop_attention(const kernels::AttentionDropout& of) override { inner_->drop_attention(of); }

  void begin_forward(const ParameterStore& store, const TokenLayout& tokens, Visits& visits) override;
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward(const MicroBatch& of) override { inner_->begin_backward(of); }
  void begin_block_backward(std::size_t layer, const AttentionSaved& attention) override {
    inner_->begin_block_backward(layer, attention);
  }
  void mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) override;
  void end() override;

 private:
  /// A sum over the tensor axis that is under way: from terms of all tokens to this rank's rows of the sum.
  struct Sum {
    Tensor result;        // where the sum goes, in the type of sums
    OwnedTensor terms;    // in the model's dtype; none if the result is summed in place
    OwnedTensor arrived;  // rows in the model's dtype; none if that is the type of sums
    Work work;
  };
  /// K/V rows of an attention pack of which other ranks have copies.
  struct CopiedRows {
    std::size_t first;
    std::size_t count;
    std::size_t group;  // index in copies_
  };

  bool slices_tokens() const { return exchange_ == TensorExchange::sequence; }
  bool narrow() const { return dtype_ != sums_; }
  OwnedTensor all_tokens(DType of, std::string_view what) const;
  Transfer gather(const ConstTensor& rows) const;
  void find_copies();
  Sum begin_sum(const Tensor& terms, const Tensor& result) const;
  void finish(const Sum& sum) const;
  template <class Body>
  void forward(const Tensor& y, const ConstTensor& x, Body&& sublayer);
  template <class Body>
  void backward(const SublayerBackward& of, Body&& sublayer);
  void sum_copies(std::size_t pack);

  Rank& rank_;
  Communicator& tensor_;
  TensorExchange exchange_;
  ModelConfig config_;
  DType dtype_;
  DType sums_;
  BlockSlice slice_;
  std::unique_ptr<Strategy> inner_;
  std::vector<Communicator> copies_;  // one group for each K/V head that this rank shares: the ranks that have it
  std::vector<CopiedRows> copied_rows_;
  const ParameterStore* store_ = nullptr;  // parameters of the current pass
  const TokenLayout* tokens_ = nullptr;
  std::vector<Work> summing_copies_;
};

}  // namespace tsprun::detail
