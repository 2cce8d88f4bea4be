// SP Ulysses: all_to_all exchanges tokens for heads (head_exchange.h). Every rank attends with n_q/D query heads, and the K/V
// heads that they read, over whole sequences; o goes back to the ranks of its tokens. A K/V head that query heads of several
// ranks read goes to each of them, and the ranks of the tokens sum its gradients in canonical order. Traffic: docs/algorithms.md,
// "Exact traffic", row SP Ulysses. Besides what the table counts, Δ (one number per query and head, in the type of sums) goes to
// the heads in the backward pass, since o stays with its tokens; it is counted as `other`. Gradients of k and v that several
// layers take are summed where the heads are, and go to the tokens once.
//
// A rank's query heads are computed in two parts: while one is computed, o or dq of the one before leaves, and dO of the next
// arrives (layers/schedules/look_ahead.h).
#include "layers/schedules/look_ahead.h"
#include "layers/schedules/sp/head_exchange.h"

#include <vector>

namespace tsprun::detail {

using kernels::Write;

namespace {

constexpr CallOptions kExchanged{.stream = Stream::kv, .purpose = Purpose::activations};
constexpr CallOptions kStatistics{.stream = Stream::kv, .purpose = Purpose::other};

/// Views [S, B, heads, d] as [B, S, heads, d], as flash attention takes it.
Tensor natural(const Tensor& whole) { return whole.transposed(0, 1); }

class UlyssesAttention final : public SequenceAttention {
 public:
  UlyssesAttention(const SequenceAxis& axis, const SequenceHeads& heads);

  SavedSizes sizes(const TokenLayout& tokens) const override;
  bool exchanges() const override { return true; }
  void exchange(const TokenLayout& tokens, const AttentionHeads& of, const ConstTensor& tokens_q, const ConstTensor& tokens_k,
                const ConstTensor& tokens_v) override;
  void exchange_queries(const TokenLayout& tokens, const AttentionHeads& of, const ConstTensor& tokens_q) override {
    exchange_.wait(exchange_.to_heads(tokens, of.q, tokens_q, queries_, kExchanged));
  }
  void forward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) override;
  void backward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of, const Gradients& gradients,
                Outputs outputs, const std::function<void()>& queries_done) override;

 private:
  /// A part of every rank's query heads that is computed together.
  struct Part {
    HeadRange own;  ///< among a rank's query heads
    HeadRange kv;   ///< among the K/V heads that this rank reads: those that these query heads read
    HeadRanges of;  ///< by rank, among the heads of all tokens
    kernels::Attention attention;

    Tensor keys(const Tensor& whole) const { return natural(whole).slice(2, kv.first, kv.count); }
    Tensor queries(const Tensor& whole) const { return natural(whole).slice(2, own.first, own.count); }
    Tensor statistics(const Tensor& all) const { return all.slice(1, own.first, own.count); }
  };
  /// A tensor [S, B, heads, e] of whole sequences on its way.
  struct Whole {
    OwnedTensor tensor;
    HeadExchange::Move move;
  };
  std::size_t me() const { return static_cast<std::size_t>(axis_.p()); }
  std::vector<Part> parts(const SequencePass& pass, const AttentionHeads& of) const;
  OwnedTensor whole_tensor(DType dtype, const TokenLayout& tokens, std::size_t heads, std::size_t elements,
                           std::string_view what) const {
    return axis_.rank.tensor(Category::communication, dtype, {tokens.sequence(), tokens.batch(), heads, elements}, what);
  }
  /// The gradient of k or v of whole sequences, and its way to the ranks of the tokens.
  struct KeyGradient {
    OwnedTensor memory;  // of the sum, or of what travels, unless it is the caller's
    Tensor sum;
    HeadExchange::Move move;
  };
  KeyGradient key_gradient(const TokenLayout& tokens, const Tensor& found, std::string_view what) const;
  void send_home(const TokenLayout& tokens, KeyGradient& of);
  OwnedTensor rounded(const Tensor& gradient) const;

  HeadExchange exchange_;
  HeadRanges queries_;
  HeadRanges kv_;
  bool kv_copied_;  // some K/V head is read by several ranks
};

UlyssesAttention::UlyssesAttention(const SequenceAxis& axis, const SequenceHeads& heads)
    : SequenceAttention(axis, heads), exchange_(axis) {
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

SavedSizes UlyssesAttention::sizes(const TokenLayout& tokens) const {
  const std::size_t d = heads_.head_dim;
  SavedSizes sizes = own_sizes(tokens);
  sizes.q = {tokens.sequence(), tokens.batch(), queries_[me()].count, d};
  sizes.kv = {tokens.sequence(), tokens.batch(), kv_[me()].count, d};
  sizes.lse = {tokens.batch(), queries_[me()].count, tokens.sequence()};
  return sizes;
}

void UlyssesAttention::exchange(const TokenLayout& tokens, const AttentionHeads& of, const ConstTensor& tokens_q,
                                const ConstTensor& tokens_k, const ConstTensor& tokens_v) {
  const HeadExchange::Move k = exchange_.to_heads(tokens, of.k, tokens_k, kv_, kExchanged);
  const HeadExchange::Move v = exchange_.to_heads(tokens, of.v, tokens_v, kv_, kExchanged);
  const HeadExchange::Move q = exchange_.to_heads(tokens, of.q, tokens_q, queries_, kExchanged);
  for (const HeadExchange::Move* move : {&k, &v, &q}) exchange_.wait(*move);
}

// --- forward -------------------------------------------------------------------------------------------------------------------

void UlyssesAttention::forward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) {
  const std::vector<Part> all = parts(pass, of);
  std::vector<Whole> o(all.size());

  const auto attend = [&](std::size_t i) {
    const Part& part = all[i];
    o[i].tensor = whole_tensor(axis_.dtype, tokens, part.own.count, heads_.head_dim, "attention output of whole sequences");
    const Tensor to = natural(o[i].tensor);
    of.lse.heads(part.own.first, part.own.count).write(0, tokens.sequence(), to, [&](const Tensor& lse) {
      axis_.compute().flash_forward(part.attention, to, lse, part.queries(of.q), part.keys(of.k), part.keys(of.v));
    });
    o[i].move = exchange_.to_tokens(tokens, o[i].tensor, part.of, kExchanged);
  };

  const auto take = [&](std::size_t i) { exchange_.unpack(tokens, of.o, o[i].move, all[i].of, false); };

  look_ahead(all.size(), {{0, attend}, {-1, take}});
}

// --- backward ------------------------------------------------------------------------------------------------------------------

void UlyssesAttention::backward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of,
                                const Gradients& gradients, Outputs outputs, const std::function<void()>& queries_done) {
  ComputeStream& compute = axis_.compute();
  const std::size_t d = heads_.head_dim;
  if (outputs == Outputs::made_again) forward(pass, tokens, of);
  KeyGradient dk;
  KeyGradient dv;
  const bool own_keys = gradients.dk.dims() > 0;
  {
    const std::vector<Part> all = parts(pass, of);
    const OwnedTensor delta = step(axis_.sums, {tokens.batch(), tokens.local(), heads_.queries, 1}, "delta of attention");
    compute.flash_delta(delta->select(3, 0).transposed(1, 2), gradients.d_o, of.o);
    Whole deltas{whole_tensor(axis_.sums, tokens, queries_[me()].count, 1, "delta of whole sequences"), {}};
    deltas.move = exchange_.to_heads(tokens, deltas.tensor, delta, queries_, kStatistics);
    dk = key_gradient(tokens, gradients.with_heads[0], "gradient of keys of whole sequences");
    dv = key_gradient(tokens, gradients.with_heads[1], "gradient of values of whole sequences");
    std::vector<Whole> dO(all.size());
    std::vector<Whole> dq(all.size());

    const auto bring = [&](std::size_t i) {
      dO[i].tensor = whole_tensor(axis_.dtype, tokens, all[i].own.count, d, "gradient of attention output of whole sequences");
      dO[i].move = exchange_.to_heads(tokens, dO[i].tensor, gradients.d_o, all[i].of, kExchanged);
    };

    const auto attend = [&](std::size_t i) {
      const Part& part = all[i];
      dq[i].tensor = whole_tensor(axis_.sums, tokens, part.own.count, d, "gradient of queries of whole sequences");
      compute.fill_zero(dq[i].tensor);
      if (i == 0) exchange_.wait(deltas.move);
      exchange_.wait(dO[i].move);
      dO[i].move = {};
      const Tensor delta_of_heads = natural(deltas.tensor->select(3, 0)).transposed(1, 2);  // [B, n_q/D, S]
      compute.flash_backward(part.attention, natural(dq[i].tensor), part.keys(dk.sum), part.keys(dv.sum), natural(dO[i].tensor),
                             part.statistics(of.lse.view()), part.statistics(delta_of_heads), part.queries(of.q), part.keys(of.k),
                             part.keys(of.v), Write::add);
      dO[i].tensor.reset();
      if (axis_.dtype != axis_.sums) dq[i].tensor = rounded(dq[i].tensor);
      dq[i].move = exchange_.to_tokens(tokens, dq[i].tensor, part.of, kExchanged);
      if (i + 1 < all.size() || !own_keys) return;
      for (KeyGradient* of_keys : {&dk, &dv}) send_home(tokens, *of_keys);
    };

    const auto take = [&](std::size_t i) { exchange_.unpack(tokens, gradients.dq, dq[i].move, all[i].of, false); };

    look_ahead(all.size(), {{1, bring}, {0, attend}, {-1, take}});
  }
  queries_done();
  if (!own_keys) return;
  exchange_.unpack(tokens, gradients.dk, dk.move, kv_, kv_copied_);
  exchange_.unpack(tokens, gradients.dv, dv.move, kv_, kv_copied_);
}

// --- heads ---------------------------------------------------------------------------------------------------------------------

/// Cuts this rank's query heads into two parts, or one if there is one head.
std::vector<UlyssesAttention::Part> UlyssesAttention::parts(const SequencePass& pass, const AttentionHeads& of) const {
  const kernels::HeadMap& map = heads_.map;
  const HeadRange& mine = queries_[me()];
  const int count = mine.count > 1 ? 2 : 1;
  const Chunks cut = Chunks::balanced(count, mine.count);
  std::vector<Part> parts;
  for (int i = 0; i < count; ++i) {
    const HeadRange own{cut.offset(i), cut.count(i)};
    const std::size_t query = map.first_query + mine.first + own.first;
    const std::size_t first_kv = query / map.group;
    const std::size_t end_kv = (query + own.count - 1) / map.group + 1;
    Part part{.own = own,
              .kv = {first_kv - map.first_kv - kv_[me()].first, end_kv - first_kv},
              .of = {},
              .attention = {.scale = heads_.scale,
                            .mask = kernels::Mask::from_positions(0, 0, of.window, pass.documents),
                            .heads = {map.group, query, first_kv},
                            .dropout = dropout(pass, mine.first + own.first),
                            .cap = of.score_cap}};
    for (const HeadRange& range : queries_) part.of.push_back({range.first + own.first, own.count});
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Returns the sum that begins with what was found before, or with zeros; parts of the heads add to it.
UlyssesAttention::KeyGradient UlyssesAttention::key_gradient(const TokenLayout& tokens, const Tensor& found,
                                                             std::string_view what) const {
  if (found.dims() > 0) return {.memory = {}, .sum = found, .move = {}};
  KeyGradient of{.memory = whole_tensor(axis_.sums, tokens, kv_[me()].count, heads_.head_dim, what), .sum = {}, .move = {}};
  of.sum = of.memory;
  axis_.compute().fill_zero(of.sum);
  return of;
}

/// Begins to send a complete sum to the ranks of its tokens. Terms of a sum over ranks travel in the type of sums.
void UlyssesAttention::send_home(const TokenLayout& tokens, KeyGradient& of) {
  if (!kv_copied_ && axis_.dtype != axis_.sums) {
    of.memory = rounded(of.sum);
    of.sum = of.memory;
  }
  of.move = exchange_.to_tokens(tokens, of.sum, kv_, kExchanged);
}

/// Returns a gradient that needs no further summing in the model's dtype, in which it travels.
OwnedTensor UlyssesAttention::rounded(const Tensor& gradient) const {
  OwnedTensor smaller = axis_.rank.tensor(Category::communication, axis_.dtype,
                                          {gradient.size(0), gradient.size(1), gradient.size(2), gradient.size(3)},
                                          "rounded gradient of whole sequences");
  axis_.compute().convert(smaller, gradient);
  return smaller;
}

}  // namespace

std::unique_ptr<SequenceAttention> make_ulysses_attention(const SequenceAxis& axis, const SequenceHeads& heads) {
  return std::make_unique<UlyssesAttention>(axis, heads);
}

}  // namespace tsprun::detail
