// Works out how heads, MLP rows and buckets are cut over the ranks of the axis.
#include "layers/schedules/tsp/axis.h"

#include "core/kernels/check.h"

namespace tsprun::detail {

TspAxis::TspAxis(Rank& on, Communicator& axis, const PackRanks& with, const StrategyOptions& options, SlicePlace at)
    : rank(on),
      group(axis),
      owners(with),
      config(options.config),
      dtype(options.dtype),
      sums(kernels::summed_in(options.dtype)),
      cuts(config,
           [&](std::size_t number) {
             const LayerSpec& layer = config.layer(number);
             const BlockSlice slice = BlockSlice::of(config, layer, at);
             const SliceCut cut = SliceCut::of(slice, axis.size());
             return TspCut{.slice = slice,
                           .heads = cut.heads,
                           .mlp_rows = cut.rows,
                           .d = config.head_dim_of(layer),
                           .scale = config.attention_factor(layer)};
           }),
      bucket_heads(options.kv_bucket_heads) {}

}  // namespace tsprun::detail
