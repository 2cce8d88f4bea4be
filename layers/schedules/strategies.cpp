// Makes the strategy of a layout's scheme, inside tensor parallelism if there is a tensor axis.
#include "layers/schedules/strategies.h"

#include "layers/layout/check_layout.h"
#include "layers/schedules/dense.h"
#include "layers/schedules/tp/tensor_parallel.h"
#include "layers/schedules/tsp/tsp.h"
#include "layers/schedules/zero3/gathered_weights.h"
#include "transport/cause.h"

#include <utility>

namespace tsprun::detail {

namespace {

/// Returns the strategy that computes a rank's slice of the blocks over the sequence axis.
std::unique_ptr<Strategy> make_inner(Rank& rank, Mesh& mesh, const StrategyOptions& options, const BlockSlice& slice) {
  Communicator& axis = mesh.sequence();
  switch (mesh.layout().scheme()) {
    case Scheme::dense:
      return std::make_unique<Dense>(rank, axis, options, slice, mesh.layout().sequence_exchange,
                                     std::make_unique<CopiedWeights>(rank, axis));
    case Scheme::zero3:
      return std::make_unique<Dense>(rank, axis, options, slice, SequenceExchange::gather,
                                     std::make_unique<GatheredWeights>(rank, axis, options.config));
    case Scheme::tsp: return std::make_unique<Tsp>(rank, axis, options, slice);
  }
  throw Error(Cause::refused, "no such scheme");
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options) {
  const Layout& layout = mesh.layout();
  check_layout(options.config, layout);
  const BlockSlice slice = BlockSlice::of(options.config, mesh.tensor().rank(), layout.tensor());
  std::unique_ptr<Strategy> inner = make_inner(rank, mesh, options, slice);
  if (layout.tensor() == 1) return inner;
  return std::make_unique<TensorParallel>(rank, mesh.tensor(), layout.tensor_exchange, options, std::move(inner));
}

}  // namespace tsprun::detail
