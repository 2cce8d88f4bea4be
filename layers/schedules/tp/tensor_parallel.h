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

#include "layers/io/by_layer.h"
#include "layers/layout/axes.h"
#include "layers/layout/slice.h"
#include "layers/parameters/place.h"
#include "layers/schedules/strategy.h"

#include <deque>
#include <memory>
#include <vector>

namespace tsprun::detail {

/// The strategy of a mesh with a tensor axis. Methods are documented in Strategy.
class TensorParallel final : public Strategy {
 public:
  /// Takes the strategy that computes this rank's slice of each block; `placement` says which K/V heads the rank holds. `rank`
  /// and `tensor` are borrowed. Throws Error(refused) unless the axis divides the query heads.
  TensorParallel(Rank& rank, Communicator& tensor, TensorExchange exchange, const StrategyOptions& options,
                 const Placement& placement, std::unique_ptr<Strategy> inner);

  SavedSizes saved_sizes(std::size_t layer, const TokenLayout& tokens) const override {
    return inner_->saved_sizes(layer, tokens);
  }

  std::unique_ptr<StrategyPass> begin(const PassInputs& of) const override;

 private:
  class Pass;
  /// K/V rows of an attention pack of which other ranks have copies.
  struct CopiedRows {
    std::size_t first;
    std::size_t count;
    Communicator* group;  ///< the ranks that have them, in copies_
  };

  std::vector<CopiedRows> find_copies(const LayerSpec& layer, const HeadRange& held);

  Rank& rank_;
  Communicator& tensor_;
  TensorExchange exchange_;
  ModelConfig config_;
  DType dtype_;
  DType sums_;
  std::unique_ptr<Strategy> inner_;
  std::deque<Communicator> copies_;  // one group for each K/V head that this rank shares: the ranks that have it
  ByLayer<std::vector<CopiedRows>> copied_rows_;
};

}  // namespace tsprun::detail
