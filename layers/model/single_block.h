// One block on a mesh without a model around it: its weights, its tokens, forward and backward. To hold a strategy against
// another implementation, and to forecast what a block needs.
#pragma once

#include "layers/model/block.h"
#include "layers/model/model.h"

#include <cstddef>
#include <memory>

namespace tsprun {

class SingleBlock {
 public:
  /// Layer 0 of a model with these options, for `batch` sequences of `sequence` tokens (all on every rank of the data axis).
  /// Takes the memory of the weights, which are then to be filled. `rank` and `mesh` must outlive it.
  SingleBlock(Rank& rank, Mesh& mesh, const ModelOptions& options, std::size_t batch, std::size_t sequence);

  ParameterStore& parameters() { return store_; }
  const TokenLayout& tokens() const { return tokens_; }
  /// A tensor of this rank's tokens, [B, S_p, h] or a slice of its rows.
  OwnedTensor residual(Category category, DType dtype, std::string_view what) {
    return tokens_.residual(rank_, category, dtype, options_.config.hidden, what);
  }
  /// What x is kept as: with options.training it stays for backward().
  Category kept() const { return options_.training ? Category::activations : Category::workspace; }

  /// x becomes y; x in the model's dtype.
  OwnedTensor forward(OwnedTensor x);
  /// After forward(): dy, of the type of sums, becomes dx; gradients are in the store.
  void backward(const Tensor& d);

 private:
  std::vector<PackPlan> packs() const;
  BlockVectors vectors() const;

  Rank& rank_;
  Mesh& mesh_;
  ModelOptions options_;
  std::unique_ptr<Strategy> strategy_;
  ParameterStore store_;
  TokenLayout tokens_;
  Block block_;
  BlockSaved saved_;
};

}  // namespace tsprun
