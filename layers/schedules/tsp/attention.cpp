// TSP attention: forward is the paper's Algorithm 1, whose line numbers are in the comments; its backward pass is in
// docs/algorithms.md, "TSP attention". Each is a loop over units with stages at distances (layers/schedules/look_ahead.h); the
// functions that the stages call are in attention_turns.cpp, but those that move weights, which follow after both.
#include "layers/schedules/tsp/attention.h"

#include "layers/schedules/look_ahead.h"
#include "layers/schedules/packs.h"

#include <utility>

namespace tsprun::detail {

using kernels::Write;

namespace {

/// Says how a product is written to an output that several add up to: the first replaces what was there, all others add.
class Accumulation {
 public:
  Write next() { return std::exchange(begun_, true) ? Write::add : Write::replace; }

 private:
  bool begun_ = false;
};

/// Returns how many K/V heads are gathered together at most.
std::size_t bucket_heads(const TspAxis& axis, const TspCut& cut, const TokenLayout& tokens) {
  if (axis.bucket_heads != 0) return axis.bucket_heads;
  return kv_bucket_heads(axis.rank.pieces().kv_bucket, tokens.batch(), tokens.sequence(), cut.d, size_of(axis.dtype),
                         cut.slice.kv.count);
}

}  // namespace

TspAttention::TspAttention(const TspAxis& axis, OwnPacks& own, const PassInputs& of)
    : axis_(axis),
      own_(own),
      of_(of),
      plans_(axis.cuts,
             [&](const TspCut& cut) { return plan_units(cut.heads, cut.slice.kv.count, bucket_heads(axis, cut, of.tokens)); }),
      W_(index(axis.D())),
      dW_(axis, own) {}

// --- forward: the paper's Algorithm 1 ------------------------------------------------------------------------------------------

// Lines 7, 14, 22 and 24, the loops over turns and their buckets, are look_ahead()'s one loop over units. Lines 6 and 13 cost
// nothing: the first product or head that is written replaces what was there.
void TspAttention::forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved,
                           const std::function<void()>& before_last_unit) {
  const TspCut& cut = axis_.of(layer);
  const TspUnits& plan = plans_[layer];
  const ConstTensor X = x.merged(0);
  const Tensor Y = y.merged(0);
  std::vector<AttentionHeads> turns(W_.size());
  std::vector<KvBucket> gathered(plan.buckets.size());
  Accumulation into_Y;
  AttentionHeads all;  // of all turns, where norms span them
  const bool together = normed_together(layer);
  if (together) {
    all = {axis_.rank, axis_.dtype, sizes_of_all(layer), saved, axis_.config.layer(layer)};
    project_together(layer, X, all, Direction::forward);
  }

  const auto prepare = [&](std::size_t u) {
    const TspUnit& unit = plan.units[u];
    const int r = unit.turn;
    AttentionHeads& turn = turns[index(r)];
    if (unit.first_of_turn && together) {
      turn = all.slice(cut.heads.query_heads(r), cut.heads.kv_heads_owned(r));
      fetch_output(layer, r + 1);
    } else if (unit.first_of_turn) {
      turn = heads_of_turn(layer, r, saved);
      const std::size_t kv_rows = kv_part_rows(layer, r);
      axis_.rank.wait(W_[index(r)].first.work);
      const Tensor W_KVQ = W_[index(r)].first.rows;
      project(layer, r, X, W_KVQ.slice(0, kv_rows, part_rows(layer, r, kPartQ)), W_KVQ.slice(0, 0, kv_rows),
              turn);  // lines 9 to 11
      W_[index(r)].first = {};
      fetch(layer, r + 1, Direction::forward);  // line 8, for the turn after this one
    }
    if (unit.first_of_bucket) gather(layer, gathered[unit.bucket], plan.buckets[unit.bucket], turn);  // lines 15 to 17
    if (unit.last_of_turn) turn.drop_keys();
  };

  const auto attend = [&](std::size_t u) {
    const TspUnit& unit = plan.units[u];
    const int r = unit.turn;
    gathered[unit.bucket].arrive(axis_.rank);
    if (u + 1 == plan.units.size()) before_last_unit();
    attend_bucket(axis_.compute(), of_.tokens, gathered[unit.bucket], readers(layer, unit, turns[index(r)]));  // 12, 18 to 21
    if (unit.last_of_bucket) gathered[unit.bucket] = {};
    if (!unit.last_of_turn) return;
    axis_.rank.look(Watched::attention_output, turns[index(r)].o);
    axis_.rank.look(Watched::log_sum_exp, turns[index(r)].lse.view());
    const Weights& W_Ot = W_[index(r)].second;
    axis_.rank.wait(W_Ot.work);
    axis_.compute().gemm("W_O", Y, matrix_of(turns[index(r)].o), W_Ot.rows, into_Y.next());  // line 23
    W_[index(r)] = {};
    turns[index(r)] = {};
  };

  look_ahead(plan.units.size(), {{1, prepare}, {0, attend}});
}

// --- backward ------------------------------------------------------------------------------------------------------------------

void TspAttention::begin_backward(std::size_t layer, const AttentionSaved& saved) {
  begin(layer, Direction::backward);
  if (!saved.q.exists() || axis_.D() == 1) return;
  const TspUnits& plan = plans_[layer];
  const HeadRange& heads = plan.buckets[plan.units[0].bucket].heads;
  first_bucket_.gather(axis_.rank, axis_.group, of_.tokens, axis_.config.layer(layer).window,
                       saved.keys()->slice(2, heads.first, heads.count), saved.values()->slice(2, heads.first, heads.count));
}

void TspAttention::backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved,
                            const std::function<void()>& after_first_unit) {
  /// Gradients that belong to one turn.
  struct Gradients {
    OwnedTensor dO;                  // [B, S_p, heads, d]
    Tensor dq;                       // the same, in the type of sums
    OwnedTensor dq_memory;           // of it, where turns are normed by themselves
    Tensor k_product, v_product;     // what went into the norms of the turn's keys and values; no dims without norms
    OwnedTensor k_memory, v_memory;  // of them, where nothing keeps them
    OwnerSums::Part dW_KV;           // [dW_K; dW_V]
    std::size_t unfinished = 0;      // buckets that dW_KV and the turn's W_K, W_V wait for
  };
  const TspCut& cut = axis_.of(layer);
  const TspUnits& plan = plans_[layer];
  const LayerSpec& spec = axis_.config.layer(layer);
  ComputeStream& compute = axis_.compute();
  const TokenLayout& tokens = of_.tokens;
  const HeadProjections of_layer = projections(layer);
  const ConstTensor X = of.x.merged(0);
  const Tensor dX = of.dx.merged(0);
  const ConstTensor dY = of.dy.merged(0);
  std::vector<AttentionHeads> turns(W_.size());
  std::vector<Gradients> gradients(W_.size());
  std::vector<KvBucket> gathered(plan.buckets.size());
  gathered[plan.units[0].bucket] = std::move(first_bucket_);
  Accumulation into_dX;
  AttentionHeads all;                  // of all turns, where norms span them, as the gradients of q, k and v that follow
  OwnedTensor all_dq;                  // [B, S_p, n_h, d], in the type of sums
  std::array<OwnedTensor, 2> all_dkv;  // [B, S_p, n_kv, d] each, likewise
  const bool together = normed_together(layer);
  if (!spec.projects_keys()) make_room_to_lend(layer, saved);
  if (together) {
    all = {axis_.rank, axis_.dtype, sizes_of_all(layer), saved, axis_.config.layer(layer)};
    if (!saved.q.exists()) {
      all.keep_products(axis_.rank, axis_.dtype, sizes_of_all(layer));
      project_together(layer, X, all, Direction::backward);
    }
    const auto gradient = [&](const Tensor& like, std::string_view what) {
      return axis_.step(axis_.sums, {like.size(0), like.size(1), like.size(2), like.size(3)}, what);
    };
    all_dq = gradient(all.q, "gradient of queries");
    all_dkv = {gradient(all.k, "gradient of keys"), gradient(all.v, "gradient of values")};
  }

  // q, k, v are taken from `saved` or computed again; K̂, V̂ are gathered again.
  const auto prepare = [&](std::size_t u) {
    const TspUnit& unit = plan.units[u];
    const int r = unit.turn;
    AttentionHeads& turn = turns[index(r)];
    if (unit.first_of_turn) {
      turn = together ? all.slice(cut.heads.query_heads(r), cut.heads.kv_heads_owned(r)) : heads_of_turn(layer, r, saved);
      turn.lse.will_be_read();
      if (!saved.q.exists() && !together) {
        axis_.rank.wait(W_[index(r)].first.work);
        axis_.rank.wait(W_[index(r)].second.work);
        if (axis_.config.layer(layer).norms_queries_and_keys())
          turn.keep_products(axis_.rank, axis_.dtype, sizes_of_turn(layer, r));
        project(layer, r, X, W_[index(r)].second.rows.slice(0, 0, part_rows(layer, r, kPartQ)), W_[index(r)].first.rows, turn);
      }
      gradients[index(r)].k_product = turn.k_product;
      gradients[index(r)].k_memory = std::move(turn.k_product_memory);
      gradients[index(r)].v_product = turn.v_product;
      gradients[index(r)].v_memory = std::move(turn.v_product_memory);
      fetch(layer, r + 1, Direction::backward);
    }
    if (unit.first_of_bucket && !gathered[unit.bucket].begun()) {
      gather(layer, gathered[unit.bucket], plan.buckets[unit.bucket], turn);
    }
    if (unit.last_of_turn) turn.drop_keys();
  };

  // dX += dq·W_Q; dW_Q = dqᵀ·X; dW_Oᵀ = Oᵀ·dY.
  const auto end_turn = [&](int r) {
    const std::size_t rows = part_rows(layer, r, kPartQ);
    Gradients& d = gradients[index(r)];
    const HeadProjection of_q = of_layer.query(in_model(cut.slice.queries, cut.heads.query_heads(r)));
    if (!together) of_q.finish_backward(d.dq, turns[index(r)].q_product);
    const Tensor dq = matrix_of(d.dq);
    compute.gemm("dX of W_Q", dX, dq, W_[index(r)].second.rows.slice(0, 0, rows), into_dX.next());
    W_[index(r)].second = {};
    OwnerSums::Part dW = dW_.part(attention_pack_number(layer), r, part_number(layer, kPartQ), 2, 2 * rows);
    compute.gemm("dW_Q", dW.rows.slice(0, 0, rows), dq.transposed(0, 1), X);
    compute.gemm("dW_O", dW.rows.slice(0, rows, rows), matrix_of(turns[index(r)].o).transposed(0, 1), dY);
    dW_.send(std::move(dW), r);
    of_q.add_gradients(d.dq);
    d.dq_memory.reset();
    turns[index(r)] = {};
  };

  const auto attend = [&](std::size_t u) {
    const TspUnit& unit = plan.units[u];
    const int r = unit.turn;
    Gradients& d = gradients[index(r)];
    KvBucket& bucket = gathered[unit.bucket];
    if (unit.first_of_turn) {
      axis_.rank.wait(W_[index(r)].second.work);
      const Tensor W_Ot = W_[index(r)].second.rows.slice(0, part_rows(layer, r, kPartQ), part_rows(layer, r, kPartO));
      const std::size_t heads = cut.heads.query_heads(r).count;
      d.dO = axis_.step(axis_.dtype, {tokens.batch(), tokens.local(), heads, cut.d}, "gradient of attention output");
      compute.gemm("dX of W_O", matrix_of(d.dO.view()), dY, W_Ot.transposed(0, 1));
      if (together) d.dq = all_dq->slice(2, cut.heads.query_heads(r).first, heads);
      else d.dq = d.dq_memory = axis_.step(axis_.sums, {tokens.batch(), tokens.local(), heads, cut.d}, "gradient of queries");
      compute.fill_zero(d.dq);
    }
    bucket.arrive(axis_.rank);
    const BucketReaders heads = readers(layer, unit, turns[index(r)]);
    if (!saved.o.exists()) attend_bucket(compute, tokens, bucket, heads);
    if (unit.first_of_bucket) bucket.make_gradients(axis_.rank);
    const auto& [first, count] = in_turn(layer, unit);
    attend_bucket_backward(axis_.rank, tokens, bucket, heads, d.dq.slice(2, first, count), d.dO->slice(2, first, count));
    if (unit.last_of_bucket) bucket.scatter(axis_.rank, axis_.group, tokens);
    if (unit.last_of_turn) d.dO.reset();
    if (unit.last_of_turn && !together) end_turn(r);
    if (u == 0) after_first_unit();
  };

  // dX += dk·W_K + dv·W_V; dW_K = dkᵀ·X, dW_V = dvᵀ·X. Without W_V the gradient of v is in that of W_K's product.
  const std::size_t projections_of_kv = spec.projects_values() ? 2 : 1;
  const auto begin_bucket = [&](int r) {
    if (!spec.projects_keys()) return;
    Gradients& d = gradients[index(r)];
    axis_.rank.wait(W_[index(r)].first.work);
    if (d.unfinished > 0) return;
    d.unfinished = plan.buckets_of(r);
    d.dW_KV = dW_.part(attention_pack_number(layer), r, kPartK, projections_of_kv, kv_part_rows(layer, r));
  };
  const auto kv_projection = [&](std::size_t which, const HeadRange& heads) {
    const HeadRange in_all = in_model(cut.slice.kv, heads);
    return which == 0 ? of_layer.key(in_all) : of_layer.value(in_all);
  };
  const auto add_kv = [&](const TspBucket& bucket, std::size_t which, const Tensor& own) {
    const auto& [r, heads] = bucket;
    const std::size_t row = which * part_rows(layer, r, kPartK) + (heads.first - cut.heads.kv_heads_owned(r).first) * cut.d;
    const std::size_t width = heads.count * cut.d;
    const Tensor gradient = matrix_of(own);
    compute.gemm(which == 0 ? "dX of W_K" : "dX of W_V", dX, gradient, W_[index(r)].first.rows.slice(0, row, width),
                 into_dX.next());
    compute.gemm(which == 0 ? "dW_K" : "dW_V", gradients[index(r)].dW_KV.rows.slice(0, row, width), gradient.transposed(0, 1), X);
    kv_projection(which, heads).add_gradients(own);
  };
  const auto end_bucket = [&](int r) {
    if (!spec.projects_keys()) return;
    Gradients& d = gradients[index(r)];
    if (--d.unfinished > 0) return;
    dW_.send(std::exchange(d.dW_KV, {}), r);
    W_[index(r)].first = {};
    d.k_product = d.v_product = {};
    d.k_memory.reset();
    d.v_memory.reset();
  };

  // dK and dV of this rank's tokens are summed.
  const auto finish = [&](std::size_t u) {
    if (!plan.units[u].last_of_bucket) return;
    KvBucket& bucket = gathered[plan.units[u].bucket];
    const TspBucket& of_bucket = plan.buckets[plan.units[u].bucket];
    const int r = of_bucket.owner;
    const HeadRange& heads = of_bucket.heads;
    bucket.finish(axis_.rank, tokens);
    if (!together) begin_bucket(r);
    const auto take = [&](std::size_t which) {
      OwnedTensor own =
          axis_.step(axis_.sums, {tokens.batch(), tokens.local(), heads.count, cut.d}, "gradient of keys or values");
      bucket.take_sum(axis_.rank, tokens, which, own);
      add_lent(saved, which, heads, own);
      return own;
    };
    const auto of_bucket_heads = [&](const Tensor& product) {
      if (product.dims() == 0) return ConstTensor();
      return ConstTensor(product.slice(2, heads.first - cut.heads.kv_heads_owned(r).first, heads.count));
    };
    const ConstTensor k_product = of_bucket_heads(gradients[index(r)].k_product);
    if (together) {
      for (std::size_t which = 0; which < 2; ++which)
        bucket.take_sum(axis_.rank, tokens, which, all_dkv[which]->slice(2, heads.first, heads.count));
    } else if (!spec.projects_keys()) {
      for (std::size_t which = 0; which < 2; ++which) lend(saved, which, heads, take(which));
    } else if (spec.projects_values()) {
      for (std::size_t which = 0; which < 2; ++which) {
        const OwnedTensor own = take(which);
        kv_projection(which, heads).finish_backward(own, which == 0 ? k_product : of_bucket_heads(gradients[index(r)].v_product));
        add_kv(of_bucket, which, own);
      }
    } else {
      const OwnedTensor dk = take(0);
      of_layer.finish_backward(in_model(cut.slice.kv, heads), dk, take(1), k_product, {});
      add_kv(of_bucket, 0, dk);
    }
    bucket = {};
    if (!together) end_bucket(r);
  };

  look_ahead(plan.units.size(), {{1, prepare}, {0, attend}, {-1, finish}});
  if (!together) return;
  of_layer.query(cut.slice.queries).finish_backward(all_dq, all.q_product);
  const HeadRange all_kv{0, cut.slice.kv.count};
  for (std::size_t which = 0; which < 2; ++which) {
    if (spec.projects_keys()) add_lent(saved, which, all_kv, all_dkv[which]);
    else lend(saved, which, all_kv, all_dkv[which]);
  }
  if (spec.projects_keys()) of_layer.finish_backward(cut.slice.kv, all_dkv[0], all_dkv[1], all.k_product, all.v_product);
  for (int r = 0; r < axis_.D(); ++r) end_turn(r);
  if (!spec.projects_keys()) return;
  for (const TspBucket& bucket : plan.buckets) {
    begin_bucket(bucket.owner);
    for (std::size_t which = 0; which < projections_of_kv; ++which)
      add_kv(bucket, which, all_dkv[which]->slice(2, bucket.heads.first, bucket.heads.count));
    end_bucket(bucket.owner);
  }
}

// --- weights -------------------------------------------------------------------------------------------------------------------

std::size_t TspAttention::part_rows(std::size_t layer, int r, std::size_t part) const {
  const TspCut& cut = axis_.of(layer);
  const LayerSpec& spec = axis_.config.layer(layer);
  if ((part == kPartK && !spec.projects_keys()) || (part == kPartV && !spec.projects_values())) return 0;
  const bool kv = part == kPartK || part == kPartV;
  return (kv ? cut.heads.kv_heads_owned(r).count : cut.heads.query_heads(r).count) * cut.d;
}

/// Returns a part's number among those that the layer's pack has.
std::size_t TspAttention::part_number(std::size_t layer, std::size_t part) const {
  const std::size_t before = axis_.config.layer(layer).kv_matrices();
  return part < kPartQ ? std::min<std::size_t>(part, before) : before + part - kPartQ;
}

TspAttention::Weights TspAttention::fetch_parts(std::size_t layer, int r, std::size_t first, std::size_t count) {
  Weights weights;
  if (r == axis_.p()) {
    const std::size_t pack = attention_pack_number(layer);
    const std::size_t number = part_number(layer, first);
    if (part_number(layer, first + count) == number) return weights;
    weights.rows = own_.values(pack, number, part_number(layer, first + count) - number);
    if (axis_.D() == 1 && own_.is_cut(pack)) {  // nobody else waits for it
      weights.work = own_.arrival(pack);
      return weights;
    }
    own_.arrive(pack);
  } else {
    std::size_t rows = 0;
    for (std::size_t part = first; part < first + count; ++part) rows += part_rows(layer, r, part);
    weights.memory = axis_.rank.tensor(Category::communication, axis_.dtype, {rows, axis_.h()}, "attention weight shard");
    weights.rows = weights.memory;
  }
  if (weights.rows.elements() > 0) {
    weights.work =
        axis_.group.post_broadcast(buffer_of(weights.rows), r, {.stream = Stream::weights, .purpose = Purpose::weights});
  }
  return weights;
}

/// Begins to broadcast the weights of turn r, if there is such a turn and it wasn't begun yet.
void TspAttention::fetch(std::size_t layer, int r, Direction direction) {
  if (r != fetched_ || r >= axis_.D()) return;
  const std::size_t cut = (direction == Direction::forward ? kPartO : kPartQ) - kPartK;
  W_[index(r)].first = fetch_parts(layer, r, kPartK, cut);
  if (direction == Direction::backward || !normed_together(layer))
    W_[index(r)].second = fetch_parts(layer, r, cut, kAttentionParts - cut);
  fetched_ = r + 1;
}

/// Begins to broadcast W_Oᵀ of turn r, if there is such a turn, where all turns are projected before.
void TspAttention::fetch_output(std::size_t layer, int r) {
  if (r < axis_.D()) W_[index(r)].second = fetch_parts(layer, r, kPartO, kAttentionParts - kPartO);
}

void TspAttention::begin(std::size_t layer, Direction direction) {
  fetched_ = 0;
  for (int r = 0; r < 2; ++r) fetch(layer, r, direction);
}

void TspAttention::begin_forward(std::size_t layer) { begin(layer, Direction::forward); }

}  // namespace tsprun::detail
