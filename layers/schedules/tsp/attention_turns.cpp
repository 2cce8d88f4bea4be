// The heads of TSP attention's turns: their projections, the buckets that they are gathered in, and the query heads that read
// these. Also the gradients of k and v that layers lend to each other.
#include "layers/schedules/packs.h"
#include "layers/schedules/tsp/attention.h"

namespace tsprun::detail {

// --- the heads of one turn -----------------------------------------------------------------------------------------------------

SavedSizes TspAttention::sizes_of_turn(std::size_t layer, int r) const {
  const TspCut& cut = axis_.of(layer);
  return SavedSizes::of(of_.tokens, cut.heads.query_heads(r).count, cut.heads.kv_heads_owned(r).count, cut.d, 0);
}

bool TspAttention::normed_together(std::size_t layer) const {
  return axis_.config.layer(layer).query_key_norm == QueryKeyNorm::rows;
}

SavedSizes TspAttention::sizes_of_all(std::size_t layer) const {
  const TspCut& cut = axis_.of(layer);
  return SavedSizes::of(of_.tokens, cut.slice.queries.count, cut.slice.kv.count, cut.d, 0);
}

AttentionHeads TspAttention::heads_of_turn(std::size_t layer, int r, const AttentionSaved& saved) const {
  return {axis_.rank,
          axis_.dtype,
          sizes_of_turn(layer, r),
          saved,
          axis_.config.layer(layer),
          axis_.of(layer).heads.query_heads(r).first,
          axis_.of(layer).heads.kv_heads_owned(r).first};
}

HeadProjections TspAttention::projections(std::size_t layer) const {
  return {axis_.rank, of_.store, axis_.config, layer, of_.tokens.rotations(), of_.heads, of_.documents.positions};
}

/// Returns heads of the slice as the whole model numbers them.
HeadRange TspAttention::in_model(const HeadRange& slice, const HeadRange& heads) {
  return {slice.first + heads.first, heads.count};
}

/// Computes Q, K, V of X·W_Q(r)ᵀ, X·W_K(r)ᵀ, X·W_V(r)ᵀ.
void TspAttention::project(std::size_t layer, int r, const ConstTensor& X, const Tensor& W_Q, const Tensor& W_KV,
                           const AttentionHeads& turn) const {
  const TspCut& cut = axis_.of(layer);
  ComputeStream& compute = axis_.compute();
  const HeadRange queries = cut.heads.query_heads(r);
  const HeadRange kv = cut.heads.kv_heads_owned(r);
  const std::size_t kv_rows = part_rows(layer, r, kPartK);
  const HeadProjections of_layer = projections(layer);
  const HeadRange kv_in_model = in_model(cut.slice.kv, kv);
  const Tensor q_product = turn.q_product.dims() > 0 ? turn.q_product : turn.q;
  const Tensor k_product = turn.k_product.dims() > 0 ? turn.k_product : turn.k;
  const Tensor v_product = turn.v_product.dims() > 0 ? turn.v_product : turn.v;
  compute.gemm("W_Q", matrix_of(q_product), X, W_Q.transposed(0, 1));
  of_layer.query(in_model(cut.slice.queries, queries)).finish(turn.q, q_product);
  axis_.rank.look(Watched::queries, turn.q);
  if (kv.count == 0 || !turn.projects_keys) return;
  compute.gemm("W_K", matrix_of(k_product), X, W_KV.slice(0, 0, kv_rows).transposed(0, 1));
  const bool has_values = axis_.config.layer(layer).projects_values();
  if (has_values) compute.gemm("W_V", matrix_of(v_product), X, W_KV.slice(0, kv_rows, kv_rows).transposed(0, 1));
  of_layer.finish_keys(kv_in_model, turn.k, k_product, turn.v);
  if (has_values) of_layer.value(kv_in_model).finish(turn.v, v_product);
  axis_.rank.look(Watched::keys, turn.k);
  axis_.rank.look(Watched::values, turn.v);
}

/// Computes q, k and v of all turns, which norms span. Keeps the weights in the backward pass.
void TspAttention::project_together(std::size_t layer, const ConstTensor& X, const AttentionHeads& all, Direction direction) {
  const TspCut& cut = axis_.of(layer);
  ComputeStream& compute = axis_.compute();
  const Tensor q_product = all.q_product.dims() > 0 ? all.q_product : all.q;
  const Tensor k_product = all.k_product.dims() > 0 ? all.k_product : all.k;
  const Tensor v_product = all.v_product.dims() > 0 ? all.v_product : all.v;
  const bool has_values = axis_.config.layer(layer).projects_values();
  for (int r = 0; r < axis_.D(); ++r) {
    TurnWeights& W = W_[index(r)];
    const auto& [first_query, queries] = cut.heads.query_heads(r);
    const auto& [first_kv, kv] = cut.heads.kv_heads_owned(r);
    const std::size_t kv_rows = part_rows(layer, r, kPartK);
    const bool forward = direction == Direction::forward;
    if (forward && r + 1 == axis_.D()) fetch_output(layer, 0);
    axis_.rank.wait(W.first.work);
    if (!forward) axis_.rank.wait(W.second.work);
    const Tensor W_Q = forward ? W.first.rows.slice(0, kv_part_rows(layer, r), part_rows(layer, r, kPartQ))
                               : W.second.rows.slice(0, 0, part_rows(layer, r, kPartQ));
    compute.gemm("W_Q", matrix_of(q_product.slice(2, first_query, queries)), X, W_Q.transposed(0, 1));
    if (kv > 0 && all.projects_keys) {
      compute.gemm("W_K", matrix_of(k_product.slice(2, first_kv, kv)), X, W.first.rows.slice(0, 0, kv_rows).transposed(0, 1));
      if (has_values)
        compute.gemm("W_V", matrix_of(v_product.slice(2, first_kv, kv)), X,
                     W.first.rows.slice(0, kv_rows, kv_rows).transposed(0, 1));
    }
    if (forward) W.first = {};
    fetch(layer, r + 1, direction);
  }
  const HeadProjections of_layer = projections(layer);
  of_layer.query(cut.slice.queries).finish(all.q, q_product);
  if (all.projects_keys) of_layer.finish_keys(cut.slice.kv, all.k, k_product, all.v);
  if (has_values) of_layer.value(cut.slice.kv).finish(all.v, v_product);
  axis_.rank.look(Watched::queries, all.q);
  if (!all.projects_keys) return;
  axis_.rank.look(Watched::keys, all.k);
  axis_.rank.look(Watched::values, all.v);
}

void TspAttention::gather(std::size_t layer, KvBucket& gathered, const TspBucket& bucket, const AttentionHeads& turn) const {
  const std::size_t first = bucket.heads.first - axis_.of(layer).heads.kv_heads_owned(bucket.owner).first;
  gathered.gather(axis_.rank, axis_.group, of_.tokens, turn.window, turn.k.slice(2, first, bucket.heads.count),
                  turn.v.slice(2, first, bucket.heads.count));
}

/// Returns a unit's query heads among those of its turn.
HeadRange TspAttention::in_turn(std::size_t layer, const TspUnit& unit) const {
  return {unit.queries.first - axis_.of(layer).heads.query_heads(unit.turn).first, unit.queries.count};
}

BucketReaders TspAttention::readers(std::size_t layer, const TspUnit& unit, const AttentionHeads& turn) const {
  const TspCut& cut = axis_.of(layer);
  const auto& [first, count] = in_turn(layer, unit);
  return {.scale = cut.scale,
          .heads = {cut.heads.heads_per_kv_head(), unit.queries.first, plans_[layer].buckets[unit.bucket].heads.first},
          .dropout = dropout_.of(cut.slice.queries.first + unit.queries.first, {}, {}),
          .q = turn.q.slice(2, first, count),
          .o = turn.o.slice(2, first, count),
          .lse = turn.lse.heads(first, count),
          .window = turn.window,
          .documents = of_.documents.starts,
          .score_cap = turn.score_cap};
}

// --- k and v of other layers ---------------------------------------------------------------------------------------------------

/// Begins the sums of gradients of the lender's k and v, unless a layer has.
void TspAttention::make_room_to_lend(std::size_t layer, const AttentionSaved& saved) const {
  const TspCut& cut = axis_.of(layer);
  const TokenLayout& tokens = of_.tokens;
  for (OwnedTensor& lent : saved.lender->lent) {
    if (lent.exists()) continue;
    lent = axis_.step(axis_.sums, {tokens.batch(), tokens.local(), cut.slice.kv.count, cut.d},
                      "gradient of keys or values that are lent");
    axis_.compute().fill_zero(lent);
  }
}

/// Adds to gradients of k (`which` 0) or v (1) of these heads what layers that take them have found.
void TspAttention::add_lent(const AttentionSaved& saved, std::size_t which, const HeadRange& heads, const Tensor& own) const {
  if (!saved.lent[which].exists()) return;
  const Tensor lent = saved.lent[which]->slice(2, heads.first, heads.count).merged(2);
  axis_.compute().add(own.merged(2), own.merged(2), lent);
}

/// Adds gradients of these heads to what is found of those of the lender's k and v.
void TspAttention::lend(const AttentionSaved& saved, std::size_t which, const HeadRange& heads, const Tensor& own) const {
  const Tensor lent = saved.lender->lent[which]->slice(2, heads.first, heads.count).merged(2);
  axis_.compute().add(lent, lent, own.merged(2));
}

}  // namespace tsprun::detail
