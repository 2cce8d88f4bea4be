// SP Ulysses: all_to_all exchanges tokens for heads. Every rank attends with n_q/D query heads, and the K/V heads that they read,
// over whole sequences; o goes back to the ranks of its tokens. A K/V head that query heads of several ranks read goes to each of
// them, and the ranks of the tokens sum its gradients in canonical order. Traffic: docs/algorithms.md, "Exact traffic", row SP
// Ulysses.
//
//   tokens [B, S_p, all heads, d]   ⇄   heads [S, B, own heads, d], natural order
//
// There are two exchanges, one per half of the sequence: the chunks of the first half (rank p has number p) in the order of
// ranks, those of the second (2D − 1 − p) in reverse order, so that in both the chunks of [S, …] are contiguous in the order in
// which they are sent or received. Besides what the table counts, Δ (one number per query and head, in the type of sums) goes to
// the heads in the backward pass, since o stays with its tokens; it is counted as `other`. A rank's query heads are computed in
// two parts: while one is computed, o or dq of the one before leaves, and dO of the next arrives.
#include "layers/layout/heads.h"
#include "layers/schedules/sp/exchanges.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tsprun::detail {

using kernels::Write;

namespace {

constexpr CallOptions kExchanged{.stream = Stream::kv, .purpose = Purpose::activations};
constexpr CallOptions kStatistics{.stream = Stream::kv, .purpose = Purpose::other};

std::vector<int> reversed_ranks(int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

/// Ranges of heads by rank.
using Ranges = std::vector<HeadRange>;

class UlyssesAttention final : public SequenceAttention {
 public:
  UlyssesAttention(const SequenceAxis& axis, const SequenceHeads& heads);

  Form form(const TokenLayout& tokens) const override;
  bool exchanges() const override { return true; }
  void exchange(const TokenLayout& tokens, const Tensor& q, const Tensor& k, const Tensor& v, const ConstTensor& tokens_q,
                const ConstTensor& tokens_k, const ConstTensor& tokens_v) override;
  void forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q, const ConstTensor& k,
               const ConstTensor& v) override;
  void backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv, const ConstTensor& d_o,
                const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q, const ConstTensor& k,
                const ConstTensor& v) override;
  void finish_backward() override;

 private:
  /// An exchange under way. `packed` is what is sent or what arrives, in the order of ranks: a chunk [tokens, B, heads, elements]
  /// per rank.
  struct Move {
    std::array<OwnedTensor, kHalves> packed;
    std::array<Work, kHalves> work;
  };
  std::size_t me() const { return static_cast<std::size_t>(axis_.p()); }
  /// Returns the communicator of a half, and the rank of the axis that is its member number i.
  Communicator& group(std::size_t half) { return half == 0 ? axis_.group : reversed_; }
  int member(std::size_t half, int i) const { return half == 0 ? i : axis_.D() - 1 - i; }
  /// Returns the number of elements that go between the tokens of rank `holder` and the heads of rank `owner`.
  std::size_t elements(const TokenLayout& tokens, std::size_t half, int holder, int owner, const Ranges& of,
                       std::size_t head_elements) const {
    return tokens.chunks_of(holder)[half].count * tokens.batch() * of[static_cast<std::size_t>(owner)].count * head_elements;
  }
  /// Returns one half of the sequence of `whole` [S, B, heads, …], which is contiguous.
  static Tensor half_of(const Tensor& whole, const TokenLayout& tokens, std::size_t half) {
    const std::size_t middle = tokens.cut().chunk_start(tokens.cut().ranks());
    return half == 0 ? whole.slice(0, 0, middle) : whole.slice(0, middle, tokens.sequence() - middle);
  }

  Move to_heads(const TokenLayout& tokens, const Tensor& whole, const ConstTensor& all, const Ranges& of,
                const CallOptions& options);
  Move to_tokens(const TokenLayout& tokens, const Tensor& whole, const Ranges& of);
  void unpack(const TokenLayout& tokens, const Tensor& all, Move& move, const Ranges& of, bool copied);
  void wait(Move& move) {
    for (const Work& half : move.work) axis_.rank.wait(half);
  }
  /// A part of every rank's query heads that is computed together.
  struct Part {
    HeadRange own;  ///< among a rank's query heads
    HeadRange kv;   ///< among the K/V heads that this rank reads: those that these query heads read
    Ranges of;      ///< by rank, among the heads of all tokens
    kernels::HeadMap map;
  };
  Part part(std::size_t first, std::size_t count) const;
  kernels::Attention attention(const Part& part, std::size_t head_dim) const {
    return {.scale = attention_scale(head_dim),
            .mask = kernels::Mask::from_positions(0, 0),
            .heads = part.map,
            .dropout = dropout().of(part.map.first_query, {}, {})};
  }
  OwnedTensor whole_tensor(DType dtype, const TokenLayout& tokens, std::size_t heads, std::size_t elements,
                           std::string_view what) const {
    return axis_.rank.tensor(Category::communication, dtype, {tokens.sequence(), tokens.batch(), heads, elements}, what);
  }
  /// Returns a gradient that needs no further summing in the model's dtype, in which it travels.
  OwnedTensor rounded(OwnedTensor gradient) const;

  SequenceAxis axis_;
  Communicator reversed_;
  Ranges queries_;
  Ranges kv_;
  bool kv_copied_;  // some K/V head is read by several ranks
  std::vector<Part> parts_;
  // Backward: gradients of K and V on their way to the ranks of their tokens.
  const TokenLayout* tokens_ = nullptr;
  OwnedTensor dk_whole_, dv_whole_;
  Move dk_move_, dv_move_;
  Tensor dk_, dv_;
};

UlyssesAttention::UlyssesAttention(const SequenceAxis& axis, const SequenceHeads& heads)
    : SequenceAttention(heads), axis_(axis), reversed_(axis.group.subgroup(reversed_ranks(axis.D()))) {
  const kernels::HeadMap& map = heads.map;
  const std::size_t count = heads.queries / static_cast<std::size_t>(axis.D());
  std::size_t read = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(axis.D()); ++r) {
    const std::size_t first = (map.first_query + r * count) / map.group - map.first_kv;
    const std::size_t last = (map.first_query + (r + 1) * count - 1) / map.group - map.first_kv;
    queries_.push_back({r * count, count});
    kv_.push_back({first, last + 1 - first});
    read += kv_.back().count;
  }
  kv_copied_ = read > heads.kv;
  const Chunks cut = Chunks::balanced(static_cast<int>(std::min<std::size_t>(2, count)), count);
  for (int i = 0; cut.offset(i) < count; ++i) parts_.push_back(part(cut.offset(i), cut.count(i)));
}

UlyssesAttention::Part UlyssesAttention::part(std::size_t first, std::size_t count) const {
  const kernels::HeadMap& map = heads().map;
  Part part{.own = {first, count}, .kv = {}, .of = {}, .map = map};
  for (const HeadRange& all : queries_) part.of.push_back({all.first + first, count});
  part.map.first_query += queries_[me()].first + first;
  part.map.first_kv = part.map.first_query / map.group;
  part.kv.first = part.map.first_kv - map.first_kv - kv_[me()].first;
  part.kv.count = (part.map.first_query + count - 1) / map.group + 1 - part.map.first_kv;
  return part;
}

SequenceAttention::Form UlyssesAttention::form(const TokenLayout& tokens) const {
  const std::size_t d = tokens.head_dim();
  return {.q = {tokens.sequence(), tokens.batch(), queries_[me()].count, d},
          .kv = {tokens.sequence(), tokens.batch(), kv_[me()].count, d},
          .lse = {tokens.batch(), queries_[me()].count, tokens.sequence()}};
}

// --- exchanges ---------------------------------------------------------------------------------------------------------------

/// Begins to send `all` [B, S_p, heads of all ranks, e] of this rank's tokens and to receive `whole` [S, B, own heads, e].
UlyssesAttention::Move UlyssesAttention::to_heads(const TokenLayout& tokens, const Tensor& whole, const ConstTensor& all,
                                                  const Ranges& of, const CallOptions& options) {
  const std::size_t e = all.size(3);
  Move move;
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk mine = tokens.chunks()[half];
    std::vector<std::size_t> sent;
    std::vector<std::size_t> received;
    for (int i = 0; i < axis_.D(); ++i) {
      sent.push_back(elements(tokens, half, axis_.p(), member(half, i), of, e));
      received.push_back(elements(tokens, half, member(half, i), axis_.p(), of, e));
    }
    const std::size_t total = std::accumulate(sent.begin(), sent.end(), std::size_t{0});
    OwnedTensor& packed = move.packed[half];
    packed = axis_.rank.tensor(Category::communication, all.dtype(), {total}, "heads that leave");
    std::size_t offset = 0;
    for (int i = 0; i < axis_.D(); ++i) {
      const HeadRange& range = of[static_cast<std::size_t>(member(half, i))];
      const std::size_t count = sent[static_cast<std::size_t>(i)];
      const Tensor place =
          packed->slice(0, offset, count).reshaped({mine.count, tokens.batch(), range.count * e}).transposed(0, 1);
      axis_.compute().convert(place, all.slice(1, mine.first, mine.count).slice(2, range.first, range.count).merged(2));
      offset += count;
    }
    move.work[half] = group(half).post_all_to_all_v(buffer_of(ConstTensor(packed.view())), sent,
                                                    buffer_of(half_of(whole, tokens, half)), received, options);
  }
  return move;
}

/// Begins to send `whole` [S, B, own heads, e] back to the ranks of its tokens; unpack() completes it.
UlyssesAttention::Move UlyssesAttention::to_tokens(const TokenLayout& tokens, const Tensor& whole, const Ranges& of) {
  const std::size_t e = whole.size(3);
  Move move;
  for (std::size_t half = 0; half < kHalves; ++half) {
    std::vector<std::size_t> sent;
    std::vector<std::size_t> received;
    for (int i = 0; i < axis_.D(); ++i) {
      sent.push_back(elements(tokens, half, member(half, i), axis_.p(), of, e));
      received.push_back(elements(tokens, half, axis_.p(), member(half, i), of, e));
    }
    const std::size_t total = std::accumulate(received.begin(), received.end(), std::size_t{0});
    move.packed[half] = axis_.rank.tensor(Category::communication, whole.dtype(), {total}, "heads that arrive");
    move.work[half] = group(half).post_all_to_all_v(buffer_of(ConstTensor(half_of(whole, tokens, half))), sent,
                                                    buffer_of(move.packed[half].view()), received, kExchanged);
  }
  return move;
}

/// Waits for to_tokens() and writes what arrived to `all` [B, S_p, heads of all ranks, e]. Copies of heads (`copied`) are summed
/// over ranks p + 1, p + 2, …, p.
void UlyssesAttention::unpack(const TokenLayout& tokens, const Tensor& all, Move& move, const Ranges& of, bool copied) {
  const std::size_t e = all.size(3);
  wait(move);
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk mine = tokens.chunks()[half];
    const Tensor rows = all.slice(1, mine.first, mine.count);
    std::vector<std::size_t> offsets(static_cast<std::size_t>(axis_.D()));
    std::size_t offset = 0;
    for (int i = 0; i < axis_.D(); ++i) {
      offsets[static_cast<std::size_t>(member(half, i))] = offset;
      offset += elements(tokens, half, axis_.p(), member(half, i), of, e);
    }
    std::vector<bool> written(all.size(2), false);
    for (int i = 1; i <= axis_.D(); ++i) {
      const int owner = (axis_.p() + i) % axis_.D();
      const HeadRange& range = of[static_cast<std::size_t>(owner)];
      const Tensor arrived =
          move.packed[half]
              ->slice(0, offsets[static_cast<std::size_t>(owner)], elements(tokens, half, axis_.p(), owner, of, e))
              .reshaped({mine.count, tokens.batch(), range.count * e})
              .transposed(0, 1);
      if (!copied) {
        axis_.compute().convert(rows.slice(2, range.first, range.count).merged(2), arrived);
        continue;
      }
      for (std::size_t head = 0; head < range.count; ++head) {
        const Tensor to = rows.select(2, range.first + head);
        const Tensor from = arrived.slice(2, head * e, e);
        if (written[range.first + head]) axis_.compute().add(to, to, from);
        else axis_.compute().convert(to, from);
        written[range.first + head] = true;
      }
    }
  }
  move = {};
}

void UlyssesAttention::exchange(const TokenLayout& tokens, const Tensor& q, const Tensor& k, const Tensor& v,
                                const ConstTensor& tokens_q, const ConstTensor& tokens_k, const ConstTensor& tokens_v) {
  Move k_move = to_heads(tokens, k, tokens_k, kv_, kExchanged);
  Move v_move = to_heads(tokens, v, tokens_v, kv_, kExchanged);
  Move q_move = to_heads(tokens, q, tokens_q, queries_, kExchanged);
  wait(k_move);
  wait(v_move);
  wait(q_move);
}

// --- forward -----------------------------------------------------------------------------------------------------------------

/// Views [S, B, heads, d] as [B, S, heads, d], as flash attention takes it.
template <class View>
static View natural(const View& whole) {
  return whole.transposed(0, 1);
}

void UlyssesAttention::forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                               const ConstTensor& k, const ConstTensor& v) {
  std::vector<OwnedTensor> wholes;
  std::vector<Move> moves;
  for (const Part& part : parts_) {
    const auto& [first, count] = part.own;
    wholes.push_back(whole_tensor(axis_.dtype, tokens, count, q.size(3), "attention output of whole sequences"));
    axis_.compute().flash_forward(attention(part, q.size(3)), natural(wholes.back().view()), lse.slice(1, first, count),
                                  natural(q).slice(2, first, count), natural(k).slice(2, part.kv.first, part.kv.count),
                                  natural(v).slice(2, part.kv.first, part.kv.count));
    moves.push_back(to_tokens(tokens, wholes.back(), part.of));
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) unpack(tokens, o, moves[i], parts_[i].of, false);
}

// --- backward ----------------------------------------------------------------------------------------------------------------

OwnedTensor UlyssesAttention::rounded(OwnedTensor gradient) const {
  if (gradient->dtype() == axis_.dtype) return gradient;
  OwnedTensor smaller = axis_.rank.tensor(Category::communication, axis_.dtype,
                                          {gradient->size(0), gradient->size(1), gradient->size(2), gradient->size(3)},
                                          "rounded gradient of whole sequences");
  axis_.compute().convert(smaller, gradient);
  return smaller;
}

void UlyssesAttention::backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                const ConstTensor& d_o, const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q,
                                const ConstTensor& k, const ConstTensor& v) {
  ComputeStream& compute = axis_.compute();
  const std::size_t d = q.size(3);
  if (outputs == Outputs::made_again) forward(tokens, o, lse, q, k, v);
  tokens_ = &tokens;
  dk_ = dk;
  dv_ = dv;
  const OwnedTensor delta = axis_.step(axis_.sums, {tokens.batch(), tokens.local(), heads().queries, 1}, "delta of attention");
  const OwnedTensor delta_whole = whole_tensor(axis_.sums, tokens, queries_[me()].count, 1, "delta of whole sequences");
  compute.flash_delta(delta->select(3, 0).transposed(1, 2), d_o, o);
  Move delta_move = to_heads(tokens, delta_whole, delta, queries_, kStatistics);
  std::vector<OwnedTensor> d_o_wholes;
  std::vector<Move> d_o_moves;
  for (const Part& part : parts_) {
    d_o_wholes.push_back(whole_tensor(axis_.dtype, tokens, part.own.count, d, "gradient of attention output of whole sequences"));
    d_o_moves.push_back(to_heads(tokens, d_o_wholes.back(), d_o, part.of, kExchanged));
  }
  dk_whole_ = whole_tensor(axis_.sums, tokens, k.size(2), d, "gradient of keys of whole sequences");
  dv_whole_ = whole_tensor(axis_.sums, tokens, v.size(2), d, "gradient of values of whole sequences");
  compute.fill_zero(dk_whole_);  // parts add to what they share
  compute.fill_zero(dv_whole_);
  const Tensor deltas = natural(delta_whole->select(3, 0)).transposed(1, 2);  // [B, n_q/D, S]
  wait(delta_move);

  std::vector<OwnedTensor> dq_wholes;
  std::vector<Move> dq_moves;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const auto keys = [&](const auto& whole) { return natural(whole).slice(2, part.kv.first, part.kv.count); };
    const auto rows = [&](const auto& all) { return all.slice(1, part.own.first, part.own.count); };
    OwnedTensor dq_whole = whole_tensor(axis_.sums, tokens, part.own.count, d, "gradient of queries of whole sequences");
    compute.fill_zero(dq_whole);
    wait(d_o_moves[i]);
    d_o_moves[i] = {};
    compute.flash_backward(attention(part, d), natural(dq_whole.view()), keys(dk_whole_.view()), keys(dv_whole_.view()),
                           natural(d_o_wholes[i].view()), rows(lse), rows(deltas),
                           natural(q).slice(2, part.own.first, part.own.count), keys(k), keys(v), Write::add);
    d_o_wholes[i].reset();
    dq_wholes.push_back(rounded(std::move(dq_whole)));
    dq_moves.push_back(to_tokens(tokens, dq_wholes.back(), part.of));
  }
  if (!kv_copied_) {
    dk_whole_ = rounded(std::move(dk_whole_));
    dv_whole_ = rounded(std::move(dv_whole_));
  }
  dk_move_ = to_tokens(tokens, dk_whole_, kv_);
  dv_move_ = to_tokens(tokens, dv_whole_, kv_);
  for (std::size_t i = 0; i < parts_.size(); ++i) unpack(tokens, dq, dq_moves[i], parts_[i].of, false);
}

void UlyssesAttention::finish_backward() {
  unpack(*tokens_, dk_, dk_move_, kv_, kv_copied_);
  unpack(*tokens_, dv_, dv_move_, kv_, kv_copied_);
  dk_whole_.reset();
  dv_whole_.reset();
}

}  // namespace

std::unique_ptr<SequenceAttention> make_ulysses_attention(const SequenceAxis& axis, const SequenceHeads& heads) {
  return std::make_unique<UlyssesAttention>(axis, heads);
}

}  // namespace tsprun::detail
