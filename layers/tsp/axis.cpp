#include "layers/tsp/axis.h"

#include "core/kernels/check.h"

namespace tsp {

TspAxis::TspAxis(Rank& on, Communicator& axis, const TspOptions& options)
    : rank(on),
      group(axis),
      config(options.config),
      dtype(options.dtype),
      sums(kernels::summed_in(options.dtype)),
      heads(options.config.query_heads, options.config.kv_heads, axis.size()),
      mlp_rows(Chunks::balanced(axis.size(), options.config.intermediate)),
      bucket_heads(options.kv_bucket_heads) {}

}  // namespace tsp
