// Ulysses: all_to_all exchanges heads for tokens. Every rank attends with n_q/D query heads, and the K/V heads that they read,
// over whole sequences; o goes back to its tokens' ranks. A K/V head that several ranks' query heads read goes to each of them,
// and its gradients are summed by the tokens' rank, in the canonical order. Page "Exact traffic", row SP all-to-all.
//
//   tokens [B, S_p, all heads, d]   ⇄   heads [S, B, own heads, d], natural order
//
// Zigzag's chunks change places in two exchanges: those of the first half (rank p's is number p) in the order of ranks, those of
// the second (2D − 1 − p) in the reverse order, so that in both the chunks of [S, …] lie one after another, as they are sent or
// received. Beside the table: Δ (one number a query and head, of the type of sums) goes to the heads in backward, since o stays
// with its tokens; it is counted under `other`.
#include "layers/heads.h"
#include "layers/sp/exchanges.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tsp {

namespace {

constexpr CallOptions kActivations{.stream = Stream::kv, .purpose = Purpose::activations};
constexpr CallOptions kStatistics{.stream = Stream::kv, .purpose = Purpose::other};

std::vector<int> reversed_ranks(int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

/// Heads of each rank.
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
  /// An exchange under way: what is sent from, or arrives in, the order of ranks; a chunk [tokens, B, heads, elements] a rank.
  struct Move {
    std::array<OwnedTensor, kHalves> packed;
    std::array<Work, kHalves> work;
  };
  std::size_t me() const { return static_cast<std::size_t>(axis_.p()); }
  /// The communicator of a half, and the rank of the axis that is its member number i.
  Communicator& group(std::size_t half) { return half == 0 ? axis_.group : reversed_; }
  int member(std::size_t half, int i) const { return half == 0 ? i : axis_.D() - 1 - i; }
  /// Elements that go between the tokens of rank `holder` and the heads of rank `owner`.
  std::size_t elements(const TokenLayout& tokens, std::size_t half, int holder, int owner, const Ranges& of,
                       std::size_t head_elements) const {
    return tokens.chunks_of(holder)[half].count * tokens.batch() * of[static_cast<std::size_t>(owner)].count * head_elements;
  }
  /// One half of the whole heads' [S, B, heads, …], without a gap.
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
  kernels::Attention attention(std::size_t head_dim) const;

  SequenceAxis axis_;
  Communicator reversed_;
  Ranges queries_;
  Ranges kv_;
  bool kv_copied_;  // some K/V head is read by several ranks
  // Backward: gradients on their way to their tokens.
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
}

kernels::Attention UlyssesAttention::attention(std::size_t head_dim) const {
  const kernels::HeadMap& map = heads().map;
  return {.scale = attention_scale(head_dim),
          .mask = kernels::Mask::from_positions(0, 0),
          .heads = {map.group, map.first_query + queries_[me()].first, map.first_kv + kv_[me()].first}};
}

SequenceAttention::Form UlyssesAttention::form(const TokenLayout& tokens) const {
  const std::size_t d = tokens.rope_table().size(1);
  return {.q = {tokens.sequence(), tokens.batch(), queries_[me()].count, d},
          .kv = {tokens.sequence(), tokens.batch(), kv_[me()].count, d},
          .lse = {tokens.batch(), queries_[me()].count, tokens.sequence()}};
}

// --- exchanges ---------------------------------------------------------------------------------------------------------------

/// `all` [B, S_p, heads of all ranks, e] goes to `whole` [S, B, own heads, e].
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

/// The way back: `whole` [S, B, own heads, e] goes to its tokens; see unpack().
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
                                                    buffer_of(move.packed[half].view()), received, kActivations);
  }
  return move;
}

/// What arrived becomes `all` [B, S_p, heads of all ranks, e]; copies of heads are summed over ranks p + 1, p + 2, …, p.
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
  Move k_move = to_heads(tokens, k, tokens_k, kv_, kActivations);
  Move v_move = to_heads(tokens, v, tokens_v, kv_, kActivations);
  Move q_move = to_heads(tokens, q, tokens_q, queries_, kActivations);
  wait(k_move);
  wait(v_move);
  wait(q_move);
}

// --- forward -----------------------------------------------------------------------------------------------------------------

void UlyssesAttention::forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                               const ConstTensor& k, const ConstTensor& v) {
  const OwnedTensor whole =
      axis_.rank.tensor(Category::communication, axis_.dtype, form(tokens).q, "attention output of whole sequences");
  axis_.compute().flash_forward(attention(q.size(3)), whole->transposed(0, 1), lse, q.transposed(0, 1), k.transposed(0, 1),
                                v.transposed(0, 1));
  Move move = to_tokens(tokens, whole, queries_);
  unpack(tokens, o, move, queries_, false);
}

// --- backward ----------------------------------------------------------------------------------------------------------------

void UlyssesAttention::backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                const ConstTensor& d_o, const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q,
                                const ConstTensor& k, const ConstTensor& v) {
  ComputeStream& compute = axis_.compute();
  if (outputs == Outputs::made_again) forward(tokens, o, lse, q, k, v);
  tokens_ = &tokens;
  dk_ = dk;
  dv_ = dv;
  const Form sizes = form(tokens);
  const auto whole_tensor = [&](DType dtype, const std::array<std::size_t, 4>& of, std::string_view what) {
    return axis_.rank.tensor(Category::communication, dtype, of, what);
  };
  OwnedTensor d_o_whole = whole_tensor(axis_.dtype, sizes.q, "gradient of attention output of whole sequences");
  const OwnedTensor delta_whole =
      whole_tensor(axis_.sums, {tokens.sequence(), tokens.batch(), queries_[me()].count, 1}, "delta of whole sequences");
  {
    Move d_o_move = to_heads(tokens, d_o_whole, d_o, queries_, kActivations);
    const OwnedTensor delta = axis_.step(axis_.sums, {tokens.batch(), tokens.local(), heads().queries, 1}, "delta of attention");
    compute.flash_delta(delta->select(3, 0).transposed(1, 2), d_o, o);
    Move delta_move = to_heads(tokens, delta_whole, delta, queries_, kStatistics);
    wait(d_o_move);
    wait(delta_move);
  }
  OwnedTensor dq_whole = whole_tensor(axis_.sums, sizes.q, "gradient of queries of whole sequences");
  dk_whole_ = whole_tensor(axis_.sums, sizes.kv, "gradient of keys of whole sequences");
  dv_whole_ = whole_tensor(axis_.sums, sizes.kv, "gradient of values of whole sequences");
  const auto natural = [](const auto& all) { return all.transposed(0, 1); };
  compute.flash_backward(attention(q.size(3)), natural(dq_whole.view()), natural(dk_whole_.view()), natural(dv_whole_.view()),
                         natural(d_o_whole.view()), lse, delta_whole->select(3, 0).transposed(0, 1).transposed(1, 2), natural(q),
                         natural(k), natural(v));
  d_o_whole.reset();
  // What isn't summed any more travels in the model's type.
  const auto rounded = [&](OwnedTensor& gradient, const std::array<std::size_t, 4>& of) {
    if (axis_.dtype == axis_.sums) return;
    OwnedTensor smaller = whole_tensor(axis_.dtype, of, "rounded gradient of whole sequences");
    compute.convert(smaller, gradient);
    gradient = std::move(smaller);
  };
  rounded(dq_whole, sizes.q);
  Move dq_move = to_tokens(tokens, dq_whole, queries_);
  if (!kv_copied_) {
    rounded(dk_whole_, sizes.kv);
    rounded(dv_whole_, sizes.kv);
  }
  dk_move_ = to_tokens(tokens, dk_whole_, kv_);
  dv_move_ = to_tokens(tokens, dv_whole_, kv_);
  unpack(tokens, dq, dq_move, queries_, false);
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

}  // namespace tsp
