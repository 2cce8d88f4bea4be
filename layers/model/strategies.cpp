#include "layers/model/strategies.h"

#include "layers/tsp/tsp.h"
#include "transport/cause.h"

namespace tsp {

std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options) {
  if (mesh.shape().scheme != Scheme::tsp || mesh.shape().tensor > 1) {
    throw Error(Cause::refused, "this version computes models over the axes dp and tsp only");
  }
  return std::make_unique<Tsp>(
      rank, mesh.sequence(),
      TspOptions{.config = options.config, .dtype = options.dtype, .kv_bucket_heads = options.kv_bucket_heads});
}

}  // namespace tsp
