#include "layers/tsp/axis.h"

#include "core/kernels/check.h"

#include <algorithm>

namespace tsp {

std::size_t tsp_bucket_heads(std::size_t batch, std::size_t sequence, std::size_t head_dim, std::size_t element,
                             std::size_t heads) {
  constexpr std::size_t kBucketBytes = std::size_t{64} << 20;
  const std::size_t head_bytes = std::max<std::size_t>(1, 2 * batch * sequence * head_dim * element);
  return std::clamp<std::size_t>(kBucketBytes / head_bytes, 1, std::max<std::size_t>(heads, 1));
}

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
