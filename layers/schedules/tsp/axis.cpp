// Works out how heads, MLP rows and buckets are cut over the ranks of the axis.
#include "layers/schedules/tsp/axis.h"

#include "core/kernels/check.h"

namespace tsprun::detail {

TspAxis::TspAxis(Rank& on, Communicator& axis, const StrategyOptions& options, const BlockSlice& of)
    : rank(on),
      group(axis),
      whole(options.config),
      slice(of),
      config(slice.apply(options.config)),
      dtype(options.dtype),
      sums(kernels::summed_in(options.dtype)),
      heads(config.query_heads, config.kv_heads, axis.size()),
      mlp_rows(Chunks::balanced(axis.size(), config.intermediate)),
      bucket_heads(options.kv_bucket_heads) {}

}  // namespace tsprun::detail
