// The all_reduce of activations and gradients, with the byte counts that docs/algorithms.md gives ("Exact traffic").
#pragma once

#include "core/collectives/choice.h"
#include "core/memory/owned_tensor.h"
#include "tsprun/communicator.h"

namespace tsprun::detail {

/// Begins to replace `tensor`, which must be contiguous, by its sum over the ranks. For a tensor of N bytes all ranks together
/// receive 2N(D−1), at any size. The automatic choice would be the one-shot algorithm for small tensors, with which every rank
/// receives (D−1)·N.
inline Work post_sum(Communicator& ranks, const Tensor& tensor, CallOptions options) {
  const Buffer buffer = buffer_of(tensor);
  if (tensor.bytes() <= kOneShotBytes) options.algorithm = Algorithm::direct;
  return ranks.post_all_reduce(buffer, buffer, Reduction::sum, options);
}

}  // namespace tsprun::detail
