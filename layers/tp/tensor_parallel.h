// Tensor parallelism (Megatron): every rank of the axis computes a slice of each sublayer, heads or rows of the MLP, by a
// strategy of its own; the slices' results are terms of a sum over the axis.
//
//   plain      x of all tokens on every rank          y = all_reduce(slice(x));        dx = all_reduce(slice'(dy))
//   sequence   x of the rank's part of the tokens     X = all_gather(x)                dY = all_gather(dy), X = all_gather(x)
//                                                     y = reduce_scatter(slice(X))     dx = reduce_scatter(slice'(dY))
//
// The second is Megatron's sequence parallelism: norms and residuals work on 1/T of the tokens. Gathered inputs aren't kept,
// which would cost each rank a whole B·S·h a sublayer; they are gathered again in backward (6BSh β ρ where kept ones need 4BSh β
// ρ). What travels has the model's dtype; dx travels while the weights' gradients are computed. Copies of K/V heads
// (layers/slice.h) have their gradients summed among the ranks that have them.
#pragma once

#include "layers/model/mesh.h"
#include "layers/model/strategy.h"
#include "layers/slice.h"

#include <memory>
#include <vector>

namespace tsprun {

class TensorParallel final : public Strategy {
 public:
  /// `inner` computes this rank's slice. `rank` and `tensor` are borrowed.
  TensorParallel(Rank& rank, Communicator& tensor, TensorExchange exchange, const ModelConfig& config, DType dtype,
                 std::unique_ptr<Strategy> inner);

  PackPlan attention_pack(std::size_t layer) const override;
  PackPlan mlp_pack(std::size_t layer) const override { return inner_->mlp_pack(layer); }
  SavedSizes saved_sizes(const ModelConfig& config, const TokenLayout& tokens) const override {
    return inner_->saved_sizes(slice_.apply(config), tokens);
  }

  void drop_attention(const kernels::AttentionDropout& of) override { inner_->drop_attention(of); }

  void begin_forward(const ParameterStore& store, const TokenLayout& tokens) override;
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward() override;
  void begin_block_backward(std::size_t layer, const AttentionSaved& attention) override {
    inner_->begin_block_backward(layer, attention);
  }
  void mlp_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                    const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                          const AttentionSaved& saved) override;
  void end() override;

 private:
  /// Terms of all tokens on their way to become this rank's rows of their sum.
  struct Sum {
    Tensor result;        // of the type of sums; none: nothing is on its way
    OwnedTensor terms;    // in the model's dtype; none where the result is summed in place
    OwnedTensor arrived;  // rows in the model's dtype, where that isn't the type of sums
    Work work;
  };
  /// K/V rows of an attention pack that several ranks have.
  struct CopiedRows {
    std::size_t first;
    std::size_t count;
    std::size_t group;  // of copies_
  };

  bool slices_tokens() const { return exchange_ == TensorExchange::sequence; }
  bool narrow() const { return dtype_ != sums_; }
  std::vector<std::size_t> elements_of_slices() const;
  OwnedTensor all_tokens(DType of, std::string_view what) const;
  Transfer gather(const ConstTensor& rows) const;
  void find_copies();
  void begin_sum(const Tensor& terms, const Tensor& result);
  void finish_sum();
  template <class Body>
  void forward(const Tensor& y, const ConstTensor& x, Body&& sublayer);
  template <class Body>
  void backward(const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, Body&& sublayer);
  void sum_copies(std::size_t pack);

  Rank& rank_;
  Communicator& tensor_;
  TensorExchange exchange_;
  ModelConfig config_;
  DType dtype_;
  DType sums_;
  BlockSlice slice_;
  std::unique_ptr<Strategy> inner_;
  std::vector<Communicator> copies_;  // those that have a K/V head in common with this rank, a group for each such head
  std::vector<CopiedRows> copied_rows_;
  const ParameterStore* store_ = nullptr;  // of the present pass, as tokens_
  const TokenLayout* tokens_ = nullptr;
  Tensor terms_;   // of the present sublayer's dx
  Tensor result_;  // where their sum goes
  Sum sum_;
  std::vector<Work> summing_copies_;
};

}  // namespace tsprun
