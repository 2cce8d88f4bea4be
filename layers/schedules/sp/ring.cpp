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
// In the backward pass K and V travel again. The sum of a rank's dK and dV starts at its right neighbour and arrives home after
// D − 1 hops, where the rank's own part is added last (layers/schedules/ring.h). Traffic: docs/algorithms.md, "Exact traffic",
// row SP ring.
#include "layers/schedules/ring.h"
#include "layers/schedules/sp/exchanges.h"

#include <optional>
#include <stdexcept>

namespace tsprun::detail {

using kernels::Write;

namespace {

constexpr CallOptions kRingExchange{.stream = Stream::kv, .purpose = Purpose::kv};

/// Consecutive tokens of a rank.
struct Tokens {
  std::size_t first;
  std::size_t count;
};

/// Which queries of this rank attend to which keys of another, and with what mask.
struct Meeting {
  Tokens queries;
  Tokens keys;
  kernels::Mask mask;
  kernels::Positions query_positions;
  kernels::Positions key_positions;
  bool empty() const { return queries.count == 0 || keys.count == 0; }
};

class RingAttention final : public SequenceAttention {
 public:
  RingAttention(const SequenceAxis& axis, const SequenceHeads& heads) : SequenceAttention(heads), axis_(axis) {}

  void begin(const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v) override;
  void forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q, const ConstTensor& k,
               const ConstTensor& v) override;
  void backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv, const ConstTensor& d_o,
                const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q, const ConstTensor& k,
                const ConstTensor& v) override;
  void finish_backward() override;

 private:
  /// Views K (0) or V (1) of a travelling pack [S_r, 2·B·n_k·d] as [B, S_r, n_k, d].
  Tensor part_of(const Tensor& pack, std::size_t which) const {
    const std::size_t width = heads().kv * head_dim_;
    return pack.split(1, pack.size(1) / 2).select(1, which).split(1, width).transposed(0, 1).split(2, head_dim_);
  }
  Meeting meet(const TokenLayout& tokens, int other) const;
  kernels::Attention attention(const Meeting& pair) const {
    return {.scale = attention_scale(head_dim_),
            .mask = pair.mask,
            .heads = heads().map,
            .dropout = dropout().of(heads().map.first_query, pair.query_positions, pair.key_positions)};
  }
  void attend(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q);

  SequenceAxis axis_;
  std::size_t head_dim_ = 0;
  OwnedTensor own_;                  // this rank's pack
  std::optional<RingWeights> ring_;  // K and V that travel in the current round; none between rounds
  // Backward: sums on their way, this rank's own sum, and where it goes.
  RingSums sums_;
  OwnedTensor own_sum_;
  Tensor dk_;
  Tensor dv_;
};

Meeting RingAttention::meet(const TokenLayout& tokens, int other) const {
  const auto mine = tokens.chunks();
  const auto theirs = tokens.chunks_of(other);
  const Tokens all_mine{0, tokens.local()};
  // A rank's tokens are in ascending order of positions, so a causal mask by index is right in spite of the gap between its
  // chunks.
  const kernels::Positions both{mine[0].start, mine[0].count, mine[1].start};
  if (other == axis_.p()) return {all_mine, all_mine, kernels::Mask::from_positions(0, 0), both, both};
  const kernels::Positions of_theirs{theirs[0].start, theirs[0].count, theirs[1].start};
  if (other < axis_.p()) return {all_mine, {0, theirs[0].count}, kernels::Mask::none(), both, of_theirs};
  return {{mine[1].first, mine[1].count},
          {0, theirs[0].count + theirs[1].count},
          kernels::Mask::none(),
          {.start = mine[1].start},
          of_theirs};
}

void RingAttention::begin(const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v) {
  if (ring_) throw std::logic_error("ring attention begins before the last pass has finished");
  head_dim_ = k.size(3);
  const std::size_t width = 2 * tokens.batch() * heads().kv * head_dim_;
  if (axis_.D() > 1) {
    own_ = axis_.rank.tensor(Category::communication, axis_.dtype, {tokens.local(), width}, "K and V of this rank's tokens");
    axis_.compute().convert(part_of(own_, 0), k);
    axis_.compute().convert(part_of(own_, 1), v);
  }
  ring_.emplace(
      axis_.rank, axis_.group, own_, [&tokens](int r) { return tokens.cut().tokens(r); }, kRingExchange, "K and V that travel");
  ring_->begin_hop();
}

// --- forward -----------------------------------------------------------------------------------------------------------------

/// Attends to the keys of the other ranks, one after another. o and lse start with the results for this rank's own keys.
void RingAttention::attend(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q) {
  ComputeStream& compute = axis_.compute();
  for (ring_->finish_hop(); ring_->shard() != axis_.p(); ring_->finish_hop()) {
    ring_->begin_hop();
    const Meeting pair = meet(tokens, ring_->shard());
    if (!pair.empty()) {
      const auto& [first, count] = pair.queries;
      const OwnedTensor part =
          axis_.step(axis_.sums, {tokens.batch(), count, heads().queries, head_dim_}, "partial attention output");
      const OwnedTensor part_lse = axis_.step(axis_.sums, {tokens.batch(), heads().queries, count}, "partial log-sum-exp");
      const auto keys = [&](std::size_t which) {
        return part_of(ring_->rows(), which).slice(1, pair.keys.first, pair.keys.count);
      };
      compute.flash_forward(attention(pair), part, part_lse, q.slice(1, first, count), keys(0), keys(1));
      const Tensor to = o.slice(1, first, count);
      const Tensor to_lse = lse.slice(2, first, count);
      const std::array<ConstTensor, 2> outputs = {to, part};
      const std::array<ConstTensor, 2> statistics = {to_lse, part_lse};
      compute.merge_attention(attention_scale(head_dim_), to, to_lse, outputs, statistics);
    }
    if (ring_->last()) break;
  }
}

void RingAttention::forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                            const ConstTensor& k, const ConstTensor& v) {
  if (!ring_) begin(tokens, k, v);
  // Outputs are merged in the type of sums and rounded once.
  OwnedTensor memory;
  Tensor sum = o;
  if (axis_.dtype != axis_.sums && axis_.D() > 1) {
    memory = axis_.step(axis_.sums, {tokens.batch(), tokens.local(), heads().queries, head_dim_}, "attention output so far");
    sum = memory;
  }
  axis_.compute().flash_forward(attention(meet(tokens, axis_.p())), sum, lse, q, k, v);
  attend(tokens, sum, lse, q);
  if (memory.exists()) axis_.compute().convert(o, sum);
  ring_.reset();
  own_.reset();
}

// --- backward ----------------------------------------------------------------------------------------------------------------

void RingAttention::backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const ConstTensor& d_o, const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q,
                             const ConstTensor& k, const ConstTensor& v) {
  ComputeStream& compute = axis_.compute();
  if (outputs == Outputs::made_again) forward(tokens, o, lse, q, k, v);  // all of K and V, before Δ is known
  if (!ring_) begin(tokens, k, v);
  dk_ = dk;
  dv_ = dv;
  const OwnedTensor delta = axis_.step(axis_.sums, {tokens.batch(), heads().queries, tokens.local()}, "delta of attention");
  compute.flash_delta(delta, d_o, o);
  own_sum_ = axis_.rank.tensor(Category::communication, axis_.sums, {tokens.local(), 2 * tokens.batch() * heads().kv * head_dim_},
                               "dK and dV of this rank's tokens");
  sums_ = {axis_.rank,     axis_.group,
           own_sum_,       [&tokens](int r) { return tokens.cut().tokens(r); },
           kRingExchange,  "dK and dV that travel",
           RingPart::ahead};
  for (int t = 0; t < axis_.D(); ++t) {
    const Meeting pair = meet(tokens, ring_->shard());
    if (t > 0) ring_->begin_hop();
    const Tensor part = sums_.part(t);
    const auto keys = [&](const auto& all) { return all.slice(1, pair.keys.first, pair.keys.count); };
    const auto rows = [&](const auto& all) { return all.slice(1, pair.queries.first, pair.queries.count); };
    const auto statistics = [&](const Tensor& all) { return all.slice(2, pair.queries.first, pair.queries.count); };
    const ConstTensor K = t == 0 ? k : part_of(ring_->rows(), 0);
    const ConstTensor V = t == 0 ? v : part_of(ring_->rows(), 1);
    if (t > 0) compute.fill_zero(part);  // queries of this rank may see only some of the keys, or none
    compute.flash_backward(attention(pair), rows(dq), keys(part_of(part, 0)), keys(part_of(part, 1)), rows(d_o), statistics(lse),
                           statistics(delta), rows(q), keys(K), keys(V), t == 0 ? Write::replace : Write::add);
    sums_.pass_on(t);
    ring_->finish_hop();
  }
  ring_.reset();
  own_.reset();
}

void RingAttention::finish_backward() {
  sums_.settle();
  axis_.compute().convert(dk_, part_of(own_sum_, 0));
  axis_.compute().convert(dv_, part_of(own_sum_, 1));
  own_sum_.reset();
}

}  // namespace

std::unique_ptr<SequenceAttention> make_ring_attention(const SequenceAxis& axis, const SequenceHeads& heads) {
  return std::make_unique<RingAttention>(axis, heads);
}

}  // namespace tsprun::detail
