// One block on a mesh without a model around it: its weights, its tokens, forward and backward. Used to compare a strategy with
// another implementation, and to forecast a block's memory. Only for models whose blocks' only vectors are two norm gains.
#pragma once

#include "layers/model/block.h"
#include "layers/model/model.h"

#include <cstddef>
#include <memory>

namespace tsprun::detail {

/// Layer 0 of a model. All ranks of the mesh call the same methods with the same arguments.
class SingleBlock {
 public:
  /// Allocates the weights of layer 0 of a model with these options, which the caller then fills. It computes with `batch`
  /// sequences of `sequence` tokens, all of them on every rank of the data axis. `rank` and `mesh` are borrowed and must outlive
  /// it. Throws Error(refused) for a model with other vectors or that the mesh can't cut, Error(out_of_memory).
  SingleBlock(Rank& rank, Mesh& mesh, const ModelOptions& options, std::size_t batch, std::size_t sequence);

  ParameterStore& parameters() { return store_; }
  const TokenLayout& tokens() const { return tokens_; }
  /// Returns a tensor of this rank's tokens, [B, S_p, h] or a slice of its rows.
  OwnedTensor residual(Category category, DType dtype, std::string_view what) {
    return tokens_.residual(rank_, category, dtype, options_.config.hidden, what);
  }
  /// Returns the category of x: with options.training it stays for backward().
  Category kept() const { return options_.training ? Category::activations : Category::workspace; }

  /// Returns the block's output for x; both in the model's dtype. One pass at a time.
  OwnedTensor forward(OwnedTensor x);
  /// Turns `d`, in the type of sums, from dy into dx, and computes the gradients into the store. Call it after forward().
  void backward(const Tensor& d);

 private:
  BlockVectors vectors() const;

  Rank& rank_;
  Mesh& mesh_;
  ModelOptions options_;
  std::unique_ptr<const Strategy> strategy_;
  ParameterStore store_;
  TokenLayout tokens_;
  Block block_;
  Visits visits_;
  std::unique_ptr<StrategyPass> pass_;  // from forward() to the end of backward()
  BlockSaved saved_;
};

}  // namespace tsprun::detail
