// Sums over ranks of what the traffic table counts.
#pragma once

#include "core/collectives/communicator.h"
#include "core/memory/owned_tensor.h"

namespace tsprun {

/// `tensor`, contiguous, becomes the sum over the ranks. Receives 2N(D−1) over all ranks at any size: a small all_reduce would be
/// run in one shot, which moves (D−1)·N on every rank.
inline Work post_sum(Communicator& ranks, const Tensor& tensor, CallOptions options) {
  const Buffer buffer = buffer_of(tensor);
  if (tensor.bytes() <= kOneShotBytes) options.algorithm = Algorithm::direct;
  return ranks.post_all_reduce(buffer, buffer, Reduction::sum, options);
}

}  // namespace tsprun
