// Takes views of what was saved, or allocates workspace where nothing was.
#include "layers/schedules/attention_heads.h"

#include "core/kernels/check.h"

namespace tsprun::detail {

AttentionHeads::AttentionHeads(Rank& rank, DType dtype, const SavedSizes& sizes, const AttentionSaved& saved,
                               std::size_t first_query, std::size_t first_kv) {
  const auto heads = [&](const OwnedTensor& kept, OwnedTensor& own, const std::array<std::size_t, 4>& shape, std::size_t first,
                         std::string_view what) -> Tensor {
    if (kept.exists()) return kept->slice(2, first, shape[2]);
    own = rank.tensor(Category::workspace, dtype, shape, what);
    return own;
  };
  q = heads(saved.q, q_memory, sizes.q, first_query, "queries");
  k = heads(saved.k, k_memory, sizes.kv, first_kv, "keys");
  v = heads(saved.v, v_memory, sizes.kv, first_kv, "values");
  o = heads(saved.o, o_memory, sizes.o, first_query, "attention output");
  lse = saved.lse.exists() ? saved.lse.heads(first_query, sizes.lse[1])
                           : LogSumExps(rank, Category::workspace, kernels::summed_in(dtype), sizes.lse, "log-sum-exp");
}

void AttentionHeads::drop_keys() {
  k = v = {};
  k_memory.reset();
  v_memory.reset();
}

}  // namespace tsprun::detail
