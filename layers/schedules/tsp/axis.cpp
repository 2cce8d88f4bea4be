// Works out how heads, MLP rows and buckets are cut over the ranks of the axis.
#include "layers/schedules/tsp/axis.h"

#include "core/kernels/check.h"
#include "layers/schedules/packs.h"

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

PackPlan TspAxis::attention_pack(std::size_t layer) const {
  HeadRange queries = heads.query_heads(p());
  HeadRange kv = heads.kv_heads_owned(p());
  queries.first += slice.queries.first;
  kv.first += slice.kv.first;
  return attention_pack_plan(whole, layer, queries, kv);
}

PackPlan TspAxis::mlp_pack(std::size_t layer) const {
  return mlp_pack_plan(whole, layer, slice.first_row + mlp_rows.offset(p()), mlp_rows.count(p()));
}

}  // namespace tsprun::detail
