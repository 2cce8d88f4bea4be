// Computes a rank's slice from the cut of heads and the chunks of MLP rows.
#include "layers/layout/slice.h"

namespace tsprun::detail {

BlockSlice BlockSlice::of(const ModelConfig& config, const LayerSpec& layer, SlicePlace at) {
  const HeadCut heads(config.query_heads, config.kv_heads_of(layer), at.ranks);
  const Chunks rows = Chunks::balanced(at.ranks, config.intermediate_of(layer));
  const HeadRange read = heads.kv_heads_read(at.rank);
  return {.queries = heads.query_heads(at.rank),
          .kv = read,
          .kv_copied = read.count - heads.kv_heads_owned(at.rank).count,
          .first_row = rows.offset(at.rank),
          .rows = rows.count(at.rank)};
}

bool BlockSlice::uniform(const ModelConfig& config, const LayerSpec& layer) const {
  const std::size_t g = config.heads_per_kv_head(layer);
  return kv.count == 1 || (queries.first % g == 0 && queries.end() % g == 0);
}

ModelConfig BlockSlice::apply(const ModelConfig& config, const LayerSpec& layer) const {
  ModelConfig part = config.of_layers_like(layer);
  part.query_heads = queries.count;
  part.kv_heads = kv.count;
  part.intermediate = rows;
  return part;
}

}  // namespace tsprun::detail
