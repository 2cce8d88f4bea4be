// Computes a rank's slice from the cut of heads and the chunks of MLP rows.
#include "layers/layout/slice.h"

namespace tsprun::detail {

BlockSlice BlockSlice::of(const ModelConfig& config, int rank, int ranks) {
  const HeadCut heads(config.query_heads, config.kv_heads, ranks);
  const Chunks rows = Chunks::balanced(ranks, config.intermediate);
  const HeadRange read = heads.kv_heads_read(rank);
  return {.queries = heads.query_heads(rank),
          .kv = read,
          .kv_copied = read.count - heads.kv_heads_owned(rank).count,
          .first_row = rows.offset(rank),
          .rows = rows.count(rank)};
}

bool BlockSlice::uniform(const ModelConfig& config) const {
  const std::size_t g = config.heads_per_kv_head();
  return kv.count == 1 || (queries.first % g == 0 && queries.end() % g == 0);
}

ModelConfig BlockSlice::apply(ModelConfig config) const {
  config.query_heads = queries.count;
  config.kv_heads = kv.count;
  config.intermediate = rows;
  return config;
}

}  // namespace tsprun::detail
