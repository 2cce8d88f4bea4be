// Peak memory of a rank in a training step under every scheme: what it holds for certain (holdings.h) and what is in flight.
//
// For TSP, and where a replica is one rank, the schedule's allocations are replayed (peaks.h). For the others the buffers that a
// sublayer's visit needs are added up:
//   sp gather, zero3   two buckets of K and V of all tokens; in backward their gradients in the type of sums
//   sp ring            three ranks' K/V, four ranks' gradients of them
//   sp ulysses         q, o, dO, dq, k, v, dk, dv of a rank's heads over all tokens
//   tp                 the sum that is all-reduced; with Megatron's sequence parallelism the gathered input, and its gradient
//   zero3              two sublayers' whole weights (one used, one prefetched), the whole gradients of one
//   tp×tsp             TSP's shards and buckets of the tensor rank's part
// and step tensors proportional to the rank's tokens. The step that needs most counts.
#pragma once

#include "core/memory/category.h"
#include "layers/theory/holdings.h"

#include <cstddef>

namespace tsp::theory {

struct FootprintOptions {
  std::size_t threads = 1;  ///< of a rank: kernels' workspace
};

CategoryBytes footprint(const Setting& setting, const Spread& spread, Place place, const FootprintOptions& options = {});

}  // namespace tsp::theory
