// Works out how heads, MLP rows and buckets are cut over the ranks of the axis.
#include "layers/schedules/tsp/axis.h"

#include "core/kernels/check.h"

namespace tsprun::detail {

TspAxis::TspAxis(Rank& on, Communicator& axis, const PackRanks& with, const StrategyOptions& options, const BlockSlice& of)
    : rank(on),
      group(axis),
      owners(with),
      whole(options.config),
      slice(of),
      config(slice.apply(options.config)),
      dtype(options.dtype),
      sums(kernels::summed_in(options.dtype)),
      heads(SliceCut::of(slice, axis.size()).heads),
      mlp_rows(SliceCut::of(slice, axis.size()).rows),
      bucket_heads(options.kv_bucket_heads) {}

}  // namespace tsprun::detail
