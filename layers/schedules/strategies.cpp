#include "layers/schedules/strategies.h"

#include "layers/layout/check_layout.h"
#include "layers/schedules/dense.h"
#include "layers/schedules/tp/tensor_parallel.h"
#include "layers/schedules/tsp/tsp.h"
#include "layers/schedules/zero3/zero3.h"
#include "transport/cause.h"

namespace tsprun::detail {

namespace {

/// Returns the strategy that computes a rank's slice of the blocks over the sequence axis.
std::unique_ptr<Strategy> make_inner(Rank& rank, Mesh& mesh, const StrategyOptions& options, const BlockSlice& slice) {
  const ModelConfig& config = options.config;
  switch (mesh.layout().scheme()) {
    case Scheme::dense:
      return std::make_unique<Dense>(rank, mesh.sequence(),
                                     DenseOptions{.config = config,
                                                  .dtype = options.dtype,
                                                  .slice = slice,
                                                  .exchange = mesh.layout().sequence_exchange,
                                                  .kv_bucket_heads = options.kv_bucket_heads});
    case Scheme::zero3:
      return std::make_unique<Zero3>(
          rank, mesh.sequence(),
          Zero3Options{.config = config, .dtype = options.dtype, .kv_bucket_heads = options.kv_bucket_heads});
    case Scheme::tsp:
      return std::make_unique<Tsp>(
          rank, mesh.sequence(),
          TspOptions{.config = config, .slice = slice, .dtype = options.dtype, .kv_bucket_heads = options.kv_bucket_heads});
  }
  throw Error(Cause::refused, "no such scheme");
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options) {
  const Layout& layout = mesh.layout();
  check_layout(options.config, layout);
  if (layout.tensor() == 1) return make_inner(rank, mesh, options, BlockSlice::whole(options.config));
  const BlockSlice slice = BlockSlice::of(options.config, mesh.tensor().rank(), layout.tensor());
  return std::make_unique<TensorParallel>(rank, mesh.tensor(), layout.tensor_exchange, options.config, options.dtype,
                                          make_inner(rank, mesh, options, slice));
}

}  // namespace tsprun::detail
