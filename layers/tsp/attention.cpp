#include "layers/tsp/attention.h"

#include "layers/packs.h"

#include <algorithm>
#include <cmath>

namespace tsp {

using kernels::Rotation;
using kernels::Write;

/// One call of forward() or backward().
struct TspAttention::Pass {
  std::size_t layer;
  bool backward;
  ConstTensor X;                // [B·S_p, h]
  Tensor Y;                     // forward: y; backward: dx
  ConstTensor dY;               // backward
  const AttentionSaved* saved;  // forward fills its tensors
  std::vector<KvBucket> gathered;
  std::deque<std::size_t> scattering;  // buckets whose gradients are on their way to their tokens' ranks
  bool wrote = false;                  // Y holds something
};

TspAttention::TspAttention(TspAxis& axis) : axis_(axis), turns_(static_cast<std::size_t>(axis.D())) {}

PackPlan TspAttention::pack(std::size_t layer) const {
  HeadRange queries = axis_.heads.query_heads(axis_.p());
  HeadRange kv = axis_.heads.kv_heads_owned(axis_.p());
  queries.first += axis_.slice.queries.first;
  kv.first += axis_.slice.kv.first;
  return attention_pack_plan(axis_.whole, layer, queries, kv);
}

// --- weights -----------------------------------------------------------------------------------------------------------------

std::size_t TspAttention::part_rows(int r, std::size_t part) const {
  const bool kv = part == kPartK || part == kPartV;
  return (kv ? axis_.heads.kv_heads_owned(r).count : axis_.heads.query_heads(r).count) * axis_.d();
}

TspAttention::Weights TspAttention::fetch_parts(std::size_t layer, int r, std::size_t first, std::size_t count) {
  Weights weights;
  if (r == axis_.p()) {
    weights.rows = axis_.store->values(attention_pack_number(layer), first, count);
  } else {
    std::size_t rows = 0;
    for (std::size_t part = first; part < first + count; ++part) rows += part_rows(r, part);
    weights.memory = axis_.rank.tensor(Category::communication, axis_.dtype, {rows, axis_.h()}, "attention weight shard");
    weights.rows = weights.memory;
  }
  if (weights.rows.elements() > 0) {
    weights.work =
        axis_.group.post_broadcast(buffer_of(weights.rows), r, {.stream = Stream::weights, .purpose = Purpose::weights});
  }
  return weights;
}

void TspAttention::fetch(Turn& turn, std::size_t layer, int r, bool backward) {
  constexpr std::size_t kForwardFirst = kPartO - kPartK;
  constexpr std::size_t kBackwardFirst = kPartQ - kPartK;
  const std::size_t first = backward ? kBackwardFirst : kForwardFirst;
  turn.W_KVQ = fetch_parts(layer, r, kPartK, first);
  turn.W_O = fetch_parts(layer, r, first, kAttentionParts - first);
  fetched_ = r + 1;
}

void TspAttention::begin(std::size_t layer, bool backward) {
  const TokenLayout& tokens = *axis_.tokens;
  const std::size_t bucket_heads = axis_.bucket_heads != 0 ? axis_.bucket_heads
                                                           : kv_bucket_heads(tokens.batch(), tokens.sequence(), axis_.d(),
                                                                             size_of(axis_.dtype), axis_.config.kv_heads);
  if (planned_heads_ != bucket_heads) {
    planned_heads_ = bucket_heads;
    plan_ = plan_units(axis_.heads, axis_.config.kv_heads, bucket_heads);
  }
  fetched_ = 0;
  for (int r = 0; r < std::min(2, axis_.D()); ++r) fetch(turns_[static_cast<std::size_t>(r)], layer, r, backward);
}

// --- both directions: q, k, v of a turn, and the gathering of its buckets ----------------------------------------------------

/// What this rank has of [B, S_p, heads, d]: a stretch of the saved heads, or memory of its own.
static Tensor heads_of(TspAxis& axis, const OwnedTensor& saved, const HeadRange& heads, OwnedTensor& own, std::string_view what) {
  if (saved.exists()) return saved->slice(2, heads.first, heads.count);
  own = axis.step(axis.dtype, {axis.tokens->batch(), axis.tokens->local(), heads.count, axis.d()}, what);
  return own;
}

/// [B, S_p, heads, d] as the matrix [B·S_p, heads·d].
template <class View>
static View matrix_of(const View& heads) {
  return heads.merged(2).merged(0);
}

/// The part of a bias that belongs to these heads of the axis' slice.
Bias TspAttention::of_heads(const Bias& bias, const HeadRange& slice, const HeadRange& heads) const {
  return bias.slice((slice.first + heads.first) * axis_.d(), heads.count * axis_.d());
}

void TspAttention::project(Pass& pass, Turn& turn, int r) {
  ComputeStream& compute = axis_.compute();
  const HeadRange queries = axis_.heads.query_heads(r);
  const HeadRange kv = axis_.heads.kv_heads_owned(r);
  turn.q = heads_of(axis_, pass.saved->q, queries, turn.q_memory, "queries");
  turn.k = heads_of(axis_, pass.saved->k, kv, turn.k_memory, "keys");
  turn.v = heads_of(axis_, pass.saved->v, kv, turn.v_memory, "values");
  turn.o = heads_of(axis_, pass.saved->o, queries, turn.o_memory, "attention output");
  if (pass.saved->lse.exists()) {
    turn.lse = pass.saved->lse->slice(1, queries.first, queries.count);
  } else {
    turn.lse_memory = axis_.step(axis_.sums, {axis_.tokens->batch(), queries.count, axis_.tokens->local()}, "log-sum-exp");
    turn.lse = turn.lse_memory;
  }
  if (pass.backward && pass.saved->q.exists()) return;  // loaded, not made again
  axis_.rank.wait(turn.W_KVQ.work);
  if (pass.backward) axis_.rank.wait(turn.W_O.work);

  const std::size_t kv_rows = part_rows(r, kPartK);
  const Tensor W_K = turn.W_KVQ.rows.slice(0, 0, kv_rows);
  const Tensor W_V = turn.W_KVQ.rows.slice(0, kv_rows, kv_rows);
  const Tensor W_Q = pass.backward ? turn.W_O.rows.slice(0, 0, part_rows(r, kPartQ))
                                   : turn.W_KVQ.rows.slice(0, 2 * kv_rows, part_rows(r, kPartQ));
  const BlockBiases b(*axis_.store, axis_.whole, pass.layer);
  compute.gemm(matrix_of(turn.q), pass.X, W_Q.transposed(0, 1));
  of_heads(b.query, axis_.slice.queries, queries).add_to(compute, matrix_of(turn.q));
  axis_.tokens->rotate(compute, turn.q, Rotation::forward);
  if (kv.count == 0) return;
  compute.gemm(matrix_of(turn.k), pass.X, W_K.transposed(0, 1));
  compute.gemm(matrix_of(turn.v), pass.X, W_V.transposed(0, 1));
  of_heads(b.key, axis_.slice.kv, kv).add_to(compute, matrix_of(turn.k));
  of_heads(b.value, axis_.slice.kv, kv).add_to(compute, matrix_of(turn.v));
  axis_.tokens->rotate(compute, turn.k, Rotation::forward);
}

void TspAttention::prepare(Pass& pass, const TspUnit& unit) {
  Turn& turn = turns_[static_cast<std::size_t>(unit.turn)];
  if (unit.first_of_turn) {
    project(pass, turn, unit.turn);
    if (!pass.backward) turn.W_KVQ = {};
    if (fetched_ == unit.turn + 1 && fetched_ < axis_.D()) {
      fetch(turns_[static_cast<std::size_t>(fetched_)], pass.layer, fetched_, pass.backward);
    }
  }
  const TspBucket& bucket = plan_.buckets[unit.bucket];
  if (unit.first_of_bucket && !pass.gathered[unit.bucket].begun()) {
    const std::size_t first = bucket.heads.first - axis_.heads.kv_heads_owned(bucket.owner).first;
    pass.gathered[unit.bucket].gather(axis_.rank, axis_.group, *axis_.tokens, turn.k.slice(2, first, bucket.heads.count),
                                      turn.v.slice(2, first, bucket.heads.count));
  }
  if (unit.last_of_turn) {
    // All buckets that the turn owns are under way.
    turn.k = turn.v = {};
    turn.k_memory.reset();
    turn.v_memory.reset();
  }
}

// --- forward -----------------------------------------------------------------------------------------------------------------

/// Of a chunk's queries on the prefix up to its end.
kernels::Attention TspAttention::attention(const TspUnit& unit, const LocalChunk& chunk) const {
  const std::size_t first_kv = plan_.buckets[unit.bucket].heads.first;
  return {.scale = 1 / std::sqrt(static_cast<double>(axis_.d())),
          .mask = kernels::Mask::from_positions(chunk.start, 0),
          .heads = {axis_.heads.heads_per_kv_head(), unit.queries.first, first_kv},
          .dropout = axis_.dropout.of(axis_.slice.queries.first + unit.queries.first, {.start = chunk.start}, {})};
}

/// Both chunks of this rank on the prefix up to each chunk's end.
void TspAttention::flash_forward(Pass& pass, const TspUnit& unit) {
  Turn& turn = turns_[static_cast<std::size_t>(unit.turn)];
  const Tensor K = pass.gathered[unit.bucket].K();
  const Tensor V = pass.gathered[unit.bucket].V();
  const std::size_t head = unit.queries.first - axis_.heads.query_heads(unit.turn).first;
  for (const LocalChunk& chunk : axis_.tokens->chunks()) {
    if (chunk.count == 0) continue;
    const auto part = [&](const Tensor& all) {
      return all.slice(1, chunk.first, chunk.count).slice(2, head, unit.queries.count);
    };
    axis_.compute().flash_forward(attention(unit, chunk), part(turn.o),
                                  turn.lse.slice(1, head, unit.queries.count).slice(2, chunk.first, chunk.count), part(turn.q),
                                  K.slice(1, 0, chunk.end()), V.slice(1, 0, chunk.end()));
  }
}

void TspAttention::compute_forward(Pass& pass, const TspUnit& unit) {
  Turn& turn = turns_[static_cast<std::size_t>(unit.turn)];
  flash_forward(pass, unit);
  if (unit.last_of_bucket) pass.gathered[unit.bucket] = {};
  if (!unit.last_of_turn) return;
  axis_.rank.wait(turn.W_O.work);
  axis_.compute().gemm(pass.Y, matrix_of(turn.o), turn.W_O.rows, pass.wrote ? Write::add : Write::replace);
  pass.wrote = true;
  turn = {};
}

void TspAttention::forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved,
                           const std::function<void()>& last_unit) {
  Pass pass{.layer = layer,
            .backward = false,
            .X = x.merged(0),
            .Y = y.merged(0),
            .dY = {},
            .saved = &saved,
            .gathered = {},
            .scattering = {}};
  pass.gathered.resize(plan_.buckets.size());
  prepare(pass, plan_.units[0]);
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    if (u + 1 < plan_.units.size()) prepare(pass, plan_.units[u + 1]);
    pass.gathered[plan_.units[u].bucket].arrive(axis_.rank);
    if (u + 1 == plan_.units.size()) last_unit();
    compute_forward(pass, plan_.units[u]);
  }
}

// --- backward ----------------------------------------------------------------------------------------------------------------

void TspAttention::begin_backward(std::size_t layer, const AttentionSaved& saved) {
  begin(layer, true);
  if (!saved.k.exists() || axis_.D() == 1) return;
  const HeadRange& heads = plan_.buckets[plan_.units[0].bucket].heads;
  first_bucket_.gather(axis_.rank, axis_.group, *axis_.tokens, saved.k->slice(2, heads.first, heads.count),
                       saved.v->slice(2, heads.first, heads.count));
}

void TspAttention::compute_backward(Pass& pass, const TspUnit& unit) {
  ComputeStream& compute = axis_.compute();
  Turn& turn = turns_[static_cast<std::size_t>(unit.turn)];
  KvBucket& gathered = pass.gathered[unit.bucket];
  const TokenLayout& tokens = *axis_.tokens;
  const std::size_t heads = axis_.heads.query_heads(unit.turn).count;
  if (unit.first_of_turn) {
    axis_.rank.wait(turn.W_O.work);
    const Tensor W_Ot = turn.W_O.rows.slice(0, part_rows(unit.turn, kPartQ), part_rows(unit.turn, kPartO));
    turn.dO = axis_.step(axis_.dtype, {tokens.batch(), tokens.local(), heads, axis_.d()}, "gradient of attention output");
    compute.gemm(matrix_of(turn.dO.view()), pass.dY, W_Ot.transposed(0, 1));
    turn.dq = axis_.step(axis_.sums, {tokens.batch(), tokens.local(), heads, axis_.d()}, "gradient of queries");
    compute.fill_zero(turn.dq);
  }
  gathered.arrive(axis_.rank);
  if (!pass.saved->o.exists()) flash_forward(pass, unit);
  if (unit.first_of_bucket) gathered.make_gradients(axis_.rank);
  const std::size_t head = unit.queries.first - axis_.heads.query_heads(unit.turn).first;
  const OwnedTensor delta = axis_.step(axis_.sums, {tokens.batch(), unit.queries.count, tokens.local()}, "delta of attention");
  compute.flash_delta(delta, turn.dO->slice(2, head, unit.queries.count), turn.o.slice(2, head, unit.queries.count));
  for (const LocalChunk& chunk : tokens.chunks()) {
    if (chunk.count == 0) continue;
    const auto prefix = [&](const Tensor& keys) { return keys.slice(1, 0, chunk.end()); };
    const auto part = [&](const Tensor& all) {
      return all.slice(1, chunk.first, chunk.count).slice(2, head, unit.queries.count);
    };
    compute.flash_backward(attention(unit, chunk), part(turn.dq), prefix(gathered.dK()), prefix(gathered.dV()), part(turn.dO),
                           turn.lse.slice(1, head, unit.queries.count).slice(2, chunk.first, chunk.count),
                           delta->slice(2, chunk.first, chunk.count), part(turn.q), prefix(gathered.K()), prefix(gathered.V()),
                           Write::add);
  }
  if (unit.last_of_bucket) {
    gathered.scatter(axis_.group, tokens);
    pass.scattering.push_back(unit.bucket);
  }
  if (unit.last_of_turn) end_turn_backward(pass, unit);
}

/// dX += dq·W_Q; dW_Q = dqᵀ·X; dW_Oᵀ = Oᵀ·dY.
void TspAttention::end_turn_backward(Pass& pass, const TspUnit& unit) {
  ComputeStream& compute = axis_.compute();
  Turn& turn = turns_[static_cast<std::size_t>(unit.turn)];
  const std::size_t rows = part_rows(unit.turn, kPartQ);
  turn.dO.reset();
  axis_.tokens->rotate(compute, turn.dq, Rotation::inverse);
  const Tensor dq = matrix_of(turn.dq.view());
  compute.gemm(pass.Y, dq, turn.W_O.rows.slice(0, 0, rows), pass.wrote ? Write::add : Write::replace);
  pass.wrote = true;
  turn.W_O = {};
  OwnedTensor memory;
  const Tensor dW = gradient_shard(pass.layer, unit.turn, kPartQ, 2, memory);
  compute.gemm(dW.slice(0, 0, rows), dq.transposed(0, 1), pass.X);
  compute.gemm(dW.slice(0, rows, rows), matrix_of(turn.o).transposed(0, 1), pass.dY);
  send_home(std::move(memory), dW, unit.turn);
  of_heads(BlockBiases(*axis_.store, axis_.whole, pass.layer).query, axis_.slice.queries, axis_.heads.query_heads(unit.turn))
      .add_gradient(compute, dq);
  turn.dq.reset();
  turn.q = turn.o = turn.lse = {};
  turn.q_memory.reset();
  turn.o_memory.reset();
  turn.lse_memory.reset();
}

/// dK and dV of this rank's tokens are here: dX += dk·W_K + dv·W_V; dW_K = dkᵀ·X, dW_V = dvᵀ·X.
void TspAttention::finish_bucket(Pass& pass, std::size_t bucket) {
  ComputeStream& compute = axis_.compute();
  const TokenLayout& tokens = *axis_.tokens;
  KvBucket& gathered = pass.gathered[bucket];
  const auto& [owner, heads] = plan_.buckets[bucket];
  Turn& turn = turns_[static_cast<std::size_t>(owner)];
  gathered.finish(axis_.rank);
  axis_.rank.wait(turn.W_KVQ.work);
  const std::size_t kv_rows = part_rows(owner, kPartK);
  const std::size_t first_row = (heads.first - axis_.heads.kv_heads_owned(owner).first) * axis_.d();
  const std::size_t width = heads.count * axis_.d();
  if (turn.unfinished == 0) {
    turn.unfinished = static_cast<std::size_t>(
        std::ranges::count_if(plan_.buckets, [owner = owner](const TspBucket& other) { return other.owner == owner; }));
    turn.dW_KV = gradient_shard(pass.layer, owner, kPartK, 2, turn.dW_KV_memory);
  }
  const BlockBiases b(*axis_.store, axis_.whole, pass.layer);
  for (std::size_t which = 0; which < 2; ++which) {
    const OwnedTensor own =
        axis_.step(axis_.sums, {tokens.batch(), tokens.local(), heads.count, axis_.d()}, "gradient of keys or values");
    gathered.take_sum(axis_.rank, tokens, which, own);
    if (which == 0) tokens.rotate(compute, own, Rotation::inverse);
    const Tensor gradient = matrix_of(own.view());
    const std::size_t row = which * kv_rows + first_row;
    compute.gemm(pass.Y, gradient, turn.W_KVQ.rows.slice(0, row, width), pass.wrote ? Write::add : Write::replace);
    pass.wrote = true;
    compute.gemm(turn.dW_KV.slice(0, row, width), gradient.transposed(0, 1), pass.X);
    of_heads(which == 0 ? b.key : b.value, axis_.slice.kv, heads).add_gradient(compute, gradient);
  }
  gathered = {};
  if (--turn.unfinished > 0) return;
  send_home(std::move(turn.dW_KV_memory), turn.dW_KV, owner);
  turn.dW_KV = {};
  turn.W_KVQ = {};
}

/// Where this rank's part of an owner's gradients is computed: in place if it is the owner.
Tensor TspAttention::gradient_shard(std::size_t layer, int r, std::size_t first, std::size_t count, OwnedTensor& memory) {
  constexpr std::size_t kOnTheirWay = 2;
  while (going_home_.size() > kOnTheirWay) {
    axis_.rank.wait(going_home_.front().work);
    going_home_.pop_front();
  }
  if (r == axis_.p()) return axis_.store->gradients(attention_pack_number(layer), first, count);
  std::size_t rows = 0;
  for (std::size_t part = first; part < first + count; ++part) rows += part_rows(r, part);
  memory = axis_.rank.tensor(Category::communication, axis_.sums, {rows, axis_.h()}, "attention gradient shard");
  return memory;
}

void TspAttention::send_home(OwnedTensor memory, const Tensor& gradient, int owner) {
  if (gradient.elements() == 0) return;
  const Buffer buffer = buffer_of(gradient);
  Work work = axis_.group.post_reduce(buffer, owner == axis_.p() ? buffer : Buffer(), Reduction::sum, owner,
                                      {.stream = Stream::gradients, .purpose = Purpose::gradients});
  going_home_.push_back({.tensor = std::move(memory), .work = work});
}

void TspAttention::settle() {
  for (Transfer& transfer : going_home_) axis_.rank.wait(transfer.work);
  going_home_.clear();
}

void TspAttention::backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                            const AttentionSaved& saved, const std::function<void()>& after_first_unit) {
  Pass pass{.layer = layer,
            .backward = true,
            .X = x.merged(0),
            .Y = dx.merged(0),
            .dY = dy.merged(0),
            .saved = &saved,
            .gathered = {},
            .scattering = {}};
  pass.gathered.resize(plan_.buckets.size());
  pass.gathered[plan_.units[0].bucket] = std::move(first_bucket_);
  prepare(pass, plan_.units[0]);
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    if (u + 1 < plan_.units.size()) prepare(pass, plan_.units[u + 1]);
    const std::size_t begun = pass.scattering.size();
    compute_backward(pass, plan_.units[u]);
    if (u == 0) after_first_unit();
    // What began to leave before this unit has had its time.
    for (std::size_t i = 0; i < begun; ++i) {
      finish_bucket(pass, pass.scattering.front());
      pass.scattering.pop_front();
    }
  }
  for (const std::size_t bucket : pass.scattering) finish_bucket(pass, bucket);
}

}  // namespace tsp
