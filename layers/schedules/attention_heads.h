// q, k, v, o and the log-sum-exp of the heads that one visit computes, and what their layer makes of scores.
#pragma once

#include "core/rank/rank.h"
#include "layers/layout/heads.h"
#include "layers/schedules/log_sum_exps.h"
#include "layers/schedules/strategy.h"

#include <cstddef>

namespace tsprun::detail {

/// Views of what an attention sublayer saves, or memory of the visit where it saves nothing. Shapes as in SavedSizes.
struct AttentionHeads {
  OwnedTensor q_memory, k_memory, v_memory, o_memory, q_product_memory, k_product_memory, v_product_memory;
  Tensor q, k, v, o;
  /// Products that went into the norms of q, k and v; no dims where nothing keeps them, or where v's is k's.
  Tensor q_product, k_product, v_product;
  LogSumExps lse;
  std::size_t window = 0;  ///< LayerSpec::window and LayerSpec::score_cap of the layer
  double score_cap = 0;
  bool norms_own_values = false;  ///< LayerSpec::norms_own_values()
  bool projects_keys = true;      ///< LayerSpec::projects_keys(); else k and v are another layer's

  AttentionHeads() = default;
  /// Takes the heads from `first_query` and `first_kv` on of what exists in `saved`, as many as `sizes` says; allocates the
  /// others as workspace. `layer`: what the layer computes.
  AttentionHeads(Rank& rank, DType dtype, const SavedSizes& sizes, const AttentionSaved& saved, const LayerSpec& layer,
                 std::size_t first_query = 0, std::size_t first_kv = 0);

  /// Returns views of these heads.
  AttentionHeads slice(const HeadRange& queries, const HeadRange& kv) const;
  /// Allocates q_product, k_product and v_product, for a backward pass that projects again.
  void keep_products(Rank& rank, DType dtype, const SavedSizes& sizes);
  /// Drops k and v, which have been gathered.
  void drop_keys();
};

}  // namespace tsprun::detail
