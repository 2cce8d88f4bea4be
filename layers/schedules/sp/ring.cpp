// Ring attention: K and V of every rank's tokens travel round the ring, one hop to the right per step. In each step a rank's
// queries attend to the keys that are with it; partial outputs are merged by their log-sum-exps as they come: first this rank's
// own keys, then those of rank p − 1, …
//
// With zigzag, a step is one rectangle without a mask. Queries of chunks p and 2D − 1 − p, keys of rank j's chunks:
//
//                     key chunk j    key chunk 2D − 1 − j
//   j < p   p           full           none
//           2D − 1 − p  full           none                 → all queries, the keys' first chunk
//   j > p   p           none           none
//           2D − 1 − p  full           full                 → the queries' second chunk, all keys
//   j = p   causal among the rank's own tokens, in their order
//
// Where documents are packed into sequences, or a window hides keys, the rank's chunks and those of rank j meet one by one, up to
// three pairs at j = p and two at another step, each masked by the positions of both; pairs that a window keeps apart, or that
// have no document in common, take no work. Those without a document in common take memory like others, so that a pass needs as
// much whatever its documents are.
//
// In most layers with windows there is little to carry round: a chunk's keys are seen by the chunks that follow it, one of which
// is the ring's last hop away. Those in which ranks take the keys alone that they see (layers/layout/seen_keys.h) are computed as
// under gather.
//
// In the backward pass K and V travel again. The sum of a rank's dK and dV starts at its right neighbour and arrives home after
// D − 1 hops, where the rank's own part is added last (layers/schedules/ring.h). Each pass is a loop over the D steps, in which K
// and V move one step ahead (layers/schedules/look_ahead.h). Traffic: docs/algorithms.md, "Exact traffic", row SP ring.
#include "layers/schedules/ring.h"
#include "core/kernels/visible_pairs.h"
#include "layers/schedules/look_ahead.h"
#include "layers/schedules/sp/sequence_attention.h"

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace tsprun::detail {

using kernels::Write;

namespace {

constexpr CallOptions kRingExchange{.stream = Stream::kv, .purpose = Purpose::kv};

/// Consecutive tokens of a rank.
struct Tokens {
  std::size_t first;
  std::size_t count;
};

/// Queries of this rank that attend to keys of another, or its own, and the mask between them.
struct AttentionPair {
  Tokens queries;
  Tokens keys;
  kernels::Mask mask;
  kernels::Positions query_positions;
  kernels::Positions key_positions;
  bool first = false;  ///< the first that these queries meet: among its keys are their own
  bool apart = false;  ///< no query has a document in common with a key: there is nothing to compute
  bool empty() const { return queries.count == 0 || keys.count == 0; }
};

class RingAttention final : public SequenceAttention {
 public:
  RingAttention(const SequenceAxis& axis, const SequenceHeads& heads)
      : SequenceAttention(axis, heads), gathered_(make_gather_attention(axis, heads)) {}

  void begin(SequencePass& pass, const TokenLayout& tokens, std::size_t window, const ConstTensor& k,
             const ConstTensor& v) override;
  void forward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) override;
  void backward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of, const Gradients& gradients,
                Outputs outputs, const std::function<void()>& queries_done) override;

 private:
  std::size_t steps() const { return static_cast<std::size_t>(axis_.D()); }
  std::size_t pack_width(const TokenLayout& tokens) const { return 2 * tokens.batch() * heads_.kv * heads_.head_dim; }
  TravellingKv take_begun(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of);
  /// Views K (0) or V (1) of a pack [S_r, 2·B·n_k·d] as [B, S_r, n_k, d].
  Tensor part_of(const Tensor& pack, std::size_t which, std::size_t d) const {
    return pack.split(1, pack.size(1) / 2).select(1, which).split(1, heads_.kv * d).transposed(0, 1).split(2, d);
  }
  std::vector<AttentionPair> meet(const SequencePass& pass, const TokenLayout& tokens, int other, std::size_t window) const;
  kernels::Attention attention(const SequencePass& pass, const AttentionHeads& of, const AttentionPair& pair) const {
    return {.scale = heads_.scale,
            .mask = pair.mask,
            .heads = heads_.map,
            .dropout = dropout(pass, 0, pair.query_positions, pair.key_positions),
            .cap = of.score_cap};
  }
  static bool goes_round(const TokenLayout& tokens, std::size_t window) { return SeenKeys(tokens.cut(), window).all(); }

  const std::unique_ptr<SequenceAttention> gathered_;  // for layers whose K and V don't go round
};

// --- forward -------------------------------------------------------------------------------------------------------------------

void RingAttention::forward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) {
  if (!goes_round(tokens, of.window)) return gathered_->forward(pass, tokens, of);
  ComputeStream& compute = axis_.compute();
  const std::size_t d = heads_.head_dim;
  TravellingKv kv = take_begun(pass, tokens, of);
  // Outputs are merged in the type of sums and rounded once.
  OwnedTensor wide;
  Tensor o = of.o;
  if (axis_.dtype != axis_.sums && axis_.D() > 1) {
    o = wide = step(axis_.sums, {tokens.batch(), tokens.local(), heads_.queries, d}, "attention output so far");
  }

  // Log-sum-exps are merged in two numbers, so that weights don't depend on how large the scores are.
  OwnedTensor lse;
  if (axis_.D() > 1) lse = step(axis_.sums, {tokens.batch(), heads_.queries, tokens.local(), 2}, "log-sum-exp so far");

  const auto travel = [&](std::size_t t) { kv.packs.fetch(t); };

  const auto attend_pair = [&](const AttentionPair& pair, const Tensor& K, const Tensor& V) {
    if (pair.empty() && !pair.first) return;
    const auto& [first, count] = pair.queries;
    const Tensor q = of.q.slice(1, first, count);
    const Tensor to = o.slice(1, first, count);
    const auto keys = [&](const Tensor& all) { return all.slice(1, pair.keys.first, pair.keys.count); };
    const auto into = [&](const Tensor& output, const Tensor& statistics) {
      compute.flash_forward(attention(pass, of, pair), output, statistics, q, keys(K), keys(V));
    };
    if (!lse.exists()) return of.lse.write(first, count, to, [&](const Tensor& to_lse) { into(to, to_lse); });
    const Tensor to_lse = lse->slice(2, first, count);
    if (pair.first) return into(to, to_lse);
    const OwnedTensor part = step(axis_.sums, {tokens.batch(), count, heads_.queries, d}, "partial attention output");
    const OwnedTensor part_lse = step(axis_.sums, {tokens.batch(), heads_.queries, count, 2}, "partial log-sum-exp");
    if (pair.apart) return;
    into(part, part_lse);
    const std::array<ConstTensor, 2> outputs = {to, part};
    const std::array<ConstTensor, 2> statistics = {to_lse, part_lse};
    compute.merge_attention(heads_.scale, to, to_lse, outputs, statistics);
  };
  // Step 0 attends to this rank's own keys; the others merge what the keys of rank (p − t) mod D add.
  const auto attend = [&](std::size_t t) {
    const Tensor pack = t == 0 ? Tensor() : kv.packs.at(t);
    const Tensor K = t == 0 ? of.k : part_of(pack, 0, d);
    const Tensor V = t == 0 ? of.v : part_of(pack, 1, d);
    for (const AttentionPair& pair : meet(pass, tokens, shard_at(axis_.group, t), of.window)) attend_pair(pair, K, V);
  };

  look_ahead(steps(), {{1, travel}, {0, attend}});
  if (lse.exists()) of.lse.take(heads_.scale, lse, o);
  if (wide.exists()) compute.convert(of.o, wide);
}

// --- backward ------------------------------------------------------------------------------------------------------------------

void RingAttention::backward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of, const Gradients& gradients,
                             Outputs outputs, const std::function<void()>& queries_done) {
  if (!goes_round(tokens, of.window)) return gathered_->backward(pass, tokens, of, gradients, outputs, queries_done);
  ComputeStream& compute = axis_.compute();
  const std::size_t d = heads_.head_dim;
  if (outputs == Outputs::made_again) forward(pass, tokens, of);  // all of K and V, before Δ is known
  std::optional<TravellingKv> kv = take_begun(pass, tokens, of);
  OwnedTensor delta = step(axis_.sums, {tokens.batch(), heads_.queries, tokens.local()}, "delta of attention");
  compute.flash_delta(delta, gradients.d_o, of.o);
  const OwnedTensor own_sum = axis_.rank.tensor(Category::communication, axis_.sums, {tokens.local(), pack_width(tokens)},
                                                "dK and dV of this rank's tokens");
  RingSums sums(
      axis_.rank, axis_.group, own_sum, [&](int r) { return tokens.cut().tokens(r); }, kRingExchange, "dK and dV that travel",
      RingPart::ahead);

  const auto travel = [&](std::size_t t) { kv->packs.fetch(t); };

  // dq, and this rank's part of dK and dV of the tokens of rank (p − t) mod D, which joins the sum that travels behind K and V.
  const auto attend = [&](std::size_t t) {
    const std::vector<AttentionPair> pairs = meet(pass, tokens, shard_at(axis_.group, t), of.window);
    const Tensor pack = kv->packs.at(t);
    const Tensor part = sums.part(t);
    const Tensor K = t == 0 ? of.k : part_of(pack, 0, d);
    const Tensor V = t == 0 ? of.v : part_of(pack, 1, d);
    const bool replaces = t == 0 && pairs.size() == 1;
    if (!replaces) compute.fill_zero(part);  // queries of this rank may see only some of the keys, or none
    if (t == 0 && !replaces) compute.fill_zero(gradients.dq);
    for (const AttentionPair& pair : pairs) {
      if (pair.apart) continue;
      const auto keys = [&](const Tensor& all) { return all.slice(1, pair.keys.first, pair.keys.count); };
      const auto rows = [&](const auto& all) { return all.slice(1, pair.queries.first, pair.queries.count); };
      const auto statistics = [&](const Tensor& all) { return all.slice(2, pair.queries.first, pair.queries.count); };
      compute.flash_backward(attention(pass, of, pair), rows(gradients.dq), keys(part_of(part, 0, d)), keys(part_of(part, 1, d)),
                             rows(gradients.d_o), statistics(of.lse.view()), statistics(delta), rows(of.q), keys(K), keys(V),
                             replaces ? Write::replace : Write::add);
    }
    sums.pass_on(t);
  };

  look_ahead(steps(), {{1, travel}, {0, attend}});
  kv.reset();
  delta.reset();
  queries_done();
  sums.settle();
  compute.convert(gradients.dk, part_of(own_sum, 0, d));
  compute.convert(gradients.dv, part_of(own_sum, 1, d));
}

// --- one step ------------------------------------------------------------------------------------------------------------------

/// Returns a rank's chunks without empty ones; two that adjoin are one.
std::vector<LocalChunk> stretches(const std::array<LocalChunk, kHalves>& chunks) {
  std::vector<LocalChunk> found;
  for (const LocalChunk& chunk : chunks) {
    if (chunk.count == 0) continue;
    if (!found.empty() && found.back().end() == chunk.start) found.back().count += chunk.count;
    else found.push_back(chunk);
  }
  return found;
}

/// Returns what queries of this rank and keys of rank `other` have to do with each other in a layer with this window, 0: none.
std::vector<AttentionPair> RingAttention::meet(const SequencePass& pass, const TokenLayout& tokens, int other,
                                               std::size_t window) const {
  const auto mine = tokens.chunks();
  const auto theirs = tokens.chunks_of(other);
  // Nothing is beyond the window, or places don't tell what is.
  const bool far = window == 0 || window >= tokens.sequence() || pass.documents.dealt();
  if (!far || pass.documents.any()) {
    std::vector<AttentionPair> pairs;
    for (const LocalChunk& queries : stretches(mine)) {
      const auto add = [&](const LocalChunk& keys, bool first) {
        const auto mask = kernels::Mask::from_positions(queries.start, keys.start, window, pass.documents);
        const bool apart = !first && kernels::visible_pairs(mask, tokens.batch(), queries.count, keys.count) == 0;
        pairs.push_back({{queries.first, queries.count},
                         {keys.first, keys.count},
                         mask,
                         {.start = queries.start},
                         {.start = keys.start},
                         first,
                         apart});
      };
      if (other == axis_.p()) add(queries, true);
      for (const LocalChunk& keys : stretches(theirs)) {
        const bool own = other == axis_.p() && keys.start == queries.start;
        if (!own && keys.start < queries.end() && (far || queries.start < keys.end() - 1 + window)) add(keys, false);
      }
    }
    return pairs;
  }
  const Tokens all_mine{0, tokens.local()};
  // A rank's tokens are in ascending order of positions, so a causal mask by index is right in spite of the gap between its
  // chunks.
  const kernels::Positions both{mine[0].start, mine[0].count, mine[1].start};
  if (other == axis_.p()) return {{all_mine, all_mine, kernels::Mask::from_positions(0, 0), both, both, true}};
  const kernels::Positions of_theirs{theirs[0].start, theirs[0].count, theirs[1].start};
  if (other < axis_.p()) return {{all_mine, {0, theirs[0].count}, kernels::Mask::none(), both, of_theirs}};
  return {{{mine[1].first, mine[1].count},
           {0, theirs[0].count + theirs[1].count},
           kernels::Mask::none(),
           {.start = mine[1].start},
           of_theirs}};
}

void RingAttention::begin(SequencePass& pass, const TokenLayout& tokens, std::size_t window, const ConstTensor& k,
                          const ConstTensor& v) {
  if (!goes_round(tokens, window)) return gathered_->begin(pass, tokens, window, k, v);
  if (pass.travelling) throw std::logic_error("ring attention begins twice");
  OwnedTensor own;
  if (axis_.D() > 1) {
    own = axis_.rank.tensor(Category::communication, axis_.dtype, {tokens.local(), pack_width(tokens)},
                            "K and V of this rank's tokens");
    axis_.compute().convert(part_of(own, 0, heads_.head_dim), k);
    axis_.compute().convert(part_of(own, 1, heads_.head_dim), v);
  }
  RingShards packs(
      axis_.rank, axis_.group, own, [&tokens](int r) { return tokens.cut().tokens(r); }, kRingExchange, "K and V that travel");
  packs.fetch(1);
  pass.travelling.emplace(TravellingKv{.own = std::move(own), .packs = std::move(packs)});
}

/// Returns K and V on their way; begins to move them if begin() wasn't called.
TravellingKv RingAttention::take_begun(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) {
  if (!pass.travelling) begin(pass, tokens, of.window, of.k, of.v);
  TravellingKv kv = std::move(*pass.travelling);
  pass.travelling.reset();
  return kv;
}

}  // namespace

std::unique_ptr<SequenceAttention> make_ring_attention(const SequenceAxis& axis, const SequenceHeads& heads) {
  return std::make_unique<RingAttention>(axis, heads);
}

}  // namespace tsprun::detail
