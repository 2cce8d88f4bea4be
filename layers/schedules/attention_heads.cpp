// Takes views of what was saved, or allocates workspace where nothing was.
#include "layers/schedules/attention_heads.h"

#include "core/kernels/check.h"

namespace tsprun::detail {

AttentionHeads::AttentionHeads(Rank& rank, DType dtype, const SavedSizes& sizes, const AttentionSaved& saved,
                               const LayerSpec& layer, std::size_t first_query, std::size_t first_kv)
    : window(layer.window),
      score_cap(layer.score_cap),
      norms_own_values(layer.norms_own_values()),
      projects_keys(layer.projects_keys()) {
  const auto heads = [&](const OwnedTensor& kept, OwnedTensor& own, const std::array<std::size_t, 4>& shape, std::size_t first,
                         std::string_view what) -> Tensor {
    if (kept.exists()) return kept->slice(2, first, shape[2]);
    own = rank.tensor(Category::workspace, dtype, shape, what);
    return own;
  };
  q = heads(saved.q, q_memory, sizes.q, first_query, "queries");
  k = heads(saved.keys(), k_memory, sizes.kv, first_kv, "keys");
  v = heads(saved.values(), v_memory, sizes.kv, first_kv, "values");
  o = heads(saved.o, o_memory, sizes.o, first_query, "attention output");
  if (saved.query_product.exists()) {
    q_product = saved.query_product->slice(2, first_query, sizes.query_product[2]);
    if (projects_keys) k_product = saved.key_product->slice(2, first_kv, sizes.key_product[2]);
  }
  if (saved.value_product.exists()) v_product = saved.value_product->slice(2, first_kv, sizes.key_product[2]);
  lse = saved.lse.exists() ? saved.lse.heads(first_query, sizes.lse[1])
                           : LogSumExps(rank, Category::workspace, kernels::summed_in(dtype), sizes.lse, "log-sum-exp");
}

AttentionHeads AttentionHeads::slice(const HeadRange& queries, const HeadRange& kv) const {
  const auto of = [](const Tensor& heads, const HeadRange& range) {
    return heads.dims() == 0 ? Tensor() : heads.slice(2, range.first, range.count);
  };
  AttentionHeads views;
  views.q = of(q, queries);
  views.k = of(k, kv);
  views.v = of(v, kv);
  views.o = of(o, queries);
  views.q_product = of(q_product, queries);
  views.k_product = of(k_product, kv);
  views.v_product = of(v_product, kv);
  views.lse = lse.heads(queries.first, queries.count);
  views.window = window;
  views.score_cap = score_cap;
  views.norms_own_values = norms_own_values;
  views.projects_keys = projects_keys;
  return views;
}

void AttentionHeads::keep_products(Rank& rank, DType dtype, const SavedSizes& sizes) {
  q_product = q_product_memory = rank.tensor(Category::workspace, dtype, sizes.query_product, "queries before their norm");
  if (!projects_keys) return;
  k_product = k_product_memory = rank.tensor(Category::workspace, dtype, sizes.key_product, "keys before their norm");
  if (norms_own_values)
    v_product = v_product_memory = rank.tensor(Category::workspace, dtype, sizes.key_product, "values before their norm");
}

void AttentionHeads::drop_keys() {
  k = v = {};
  k_memory.reset();
  v_memory.reset();
}

}  // namespace tsprun::detail
