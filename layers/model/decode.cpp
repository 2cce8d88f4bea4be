// Decodes a token layer by layer: projections of the share, cached attention, merge of partial results, sums.
#include "layers/model/decode.h"

#include "core/kernels/check.h"
#include "core/trace/recorder.h"
#include "layers/schedules/mlp_columns.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace tsprun::detail {

namespace {

const CallOptions kDecoded{.stream = Stream::kv, .purpose = Purpose::activations};
const CallOptions kCache{.stream = Stream::kv, .purpose = Purpose::kv};

}  // namespace

std::string Decoder::why_not(const Layout& layout) {
  for (const Axis& axis : layout.axes) {
    if (axis.degree == 1) continue;
    if (const std::string_view why = row_of(axis.kind).why_not_decoded; !why.empty()) return std::string(why);
    if (const Variant* variant = variant_of(axis); variant != nullptr && !variant->why_not_decoded.empty())
      return std::string(variant->why_not_decoded);
  }
  constexpr int kMostParts = 64;  // limit of merge_attention()
  if (layout.sequence() > kMostParts) return fmt::format("at most {} ranks share a cache's positions", kMostParts);
  return {};
}

namespace {

/// Cuts the slice's query heads over `ranks` as evenly as possible, and gives each rank the K/V heads that its query heads are
/// the first to read. All are numbered within the slice.
template <class Share>
std::vector<Share> cut_heads(const ModelConfig& config, const BlockSlice& slice, int ranks) {
  const Chunks cut = Chunks::balanced(ranks, slice.queries.count);
  const std::size_t g = config.heads_per_kv_head();
  std::vector<Share> shares;
  std::size_t next = 0;
  for (int r = 0; r < ranks; ++r) {
    const HeadRange queries{cut.offset(r), cut.count(r)};
    const std::size_t read = queries.count == 0 ? next : (slice.queries.first + queries.end() - 1) / g + 1 - slice.kv.first;
    shares.push_back({queries, {next, read - next}});
    next = read;
  }
  return shares;
}

}  // namespace

Decoder::Decoder(Rank& rank, Model& model, std::size_t positions)
    : rank_(rank),
      model_(model),
      sequence_(model.mesh().sequence()),
      config_(model.options().config),
      dtype_(model.options().dtype),
      sums_(kernels::summed_in(dtype_)),
      slice_(BlockSlice::of(config_, model.mesh().tensor().rank(), model.mesh().tensor().size())),
      shares_(cut_heads<Share>(config_, slice_, sequence_.size())),
      positions_(positions),
      logits_(rank.tensor(Category::communication, sums_, {config_.vocabulary}, "logits")) {
  if (const std::string why = why_not(model.mesh().layout()); !why.empty()) throw Error(Cause::refused, "decoding: " + why);
  if (config_.rotary_positions()) {
    rope_ = rank.tensor(Category::workspace, sums_, {1, config_.head_dim}, "RoPE table");
  } else if (positions > config_.max_positions) {
    throw Error(Cause::refused,
                fmt::format("{} tokens in all; {} has {} learned positions", positions, config_.name, config_.max_positions));
  }
  for (std::size_t layer = 0; layer < config_.layers; ++layer) {
    const auto room = [&](std::string_view what) {
      return rank_.tensor(Category::activations, dtype_, {1, cached(positions), slice_.kv.count, config_.head_dim}, what);
    };
    cache_.push_back({.k = room("K cache"), .v = room("V cache")});
  }
}

// --- weights -----------------------------------------------------------------------------------------------------------------

/// Returns this rank's share of the pack [W_K; W_V; W_Q; W_Oᵀ] of the heads that it holds.
Decoder::AttentionRows Decoder::attention_rows(std::size_t layer) const {
  const Tensor rows = model_.parameters().values(attention_pack_number(layer));
  const std::size_t d = config_.head_dim;
  const Share held = holds_share_only() ? mine() : Share{{0, slice_.queries.count}, {0, slice_.kv.count}};
  const std::size_t k = held.kv.count * d;
  const std::size_t a = held.queries.count * d;
  const std::size_t own_kv = (mine().kv.first - held.kv.first) * d;
  const std::size_t own_q = (mine().queries.first - held.queries.first) * d;
  const std::size_t kv_rows = mine().kv.count * d;
  const std::size_t q_rows = mine().queries.count * d;
  return {.K = rows.slice(0, own_kv, kv_rows),
          .V = rows.slice(0, k + own_kv, kv_rows),
          .Q = rows.slice(0, 2 * k + own_q, q_rows),
          .KVQ = own_kv + own_q == 0 && kv_rows == k && q_rows == a ? rows.slice(0, 0, 2 * k + a) : Tensor(),
          .Ot = rows.slice(0, 2 * k + a + own_q, q_rows)};
}

MlpMatrices Decoder::mlp_rows(std::size_t layer) const {
  MlpMatrices W(model_.parameters().values(mlp_pack_number(layer)), config_);
  if (holds_share_only()) return W;
  const Chunks cut = mlp_cut();
  for (Tensor* rows : {&W.W1, &W.W3, &W.W2t}) {
    if (rows->dims() > 0) *rows = rows->slice(0, cut.offset(p()), cut.count(p()));
  }
  return W;
}

/// Returns how many of the positions below `length` this rank caches.
std::size_t Decoder::cached(std::size_t length) const {
  const auto ranks = static_cast<std::size_t>(D());
  const auto me = static_cast<std::size_t>(p());
  return length / ranks + (me < length % ranks ? 1 : 0);
}

// --- the prompt --------------------------------------------------------------------------------------------------------------

/// Sends rows of `from` [S_p, n_kv·d], this rank's tokens by zigzag, to the ranks that cache their positions, and receives `to`
/// [cached, n_kv·d], ordered by position.
void Decoder::move_rows(const Tensor& to, const ConstTensor& from, const TokenLayout& tokens) {
  const auto ranks = static_cast<std::size_t>(D());
  const std::size_t width = from.size(1);
  std::vector<std::uint32_t> leaving;  // my tokens by destination, then position
  std::vector<std::size_t> send_counts(ranks, 0);
  std::vector<std::uint32_t> where(to.size(0));  // row of `in` for each cached position
  std::vector<std::size_t> recv_counts(ranks, 0);
  const std::vector<std::int64_t> mine = tokens.cut().positions(p());
  for (std::size_t q = 0; q < ranks; ++q) {
    for (std::size_t t = 0; t < mine.size(); ++t) {
      if (static_cast<std::size_t>(mine[t]) % ranks != q) continue;
      leaving.push_back(static_cast<std::uint32_t>(t));
      send_counts[q] += width;
    }
  }
  std::uint32_t arrived = 0;
  for (int r = 0; r < D(); ++r) {
    for (const std::int64_t position : tokens.cut().positions(r)) {
      if (static_cast<std::size_t>(position) % ranks != static_cast<std::size_t>(p())) continue;
      where[static_cast<std::size_t>(position) / ranks] = arrived++;
      recv_counts[static_cast<std::size_t>(r)] += width;
    }
  }
  const OwnedTensor out = rank_.tensor(Category::communication, dtype_, {from.size(0), width}, "K/V for the cache");
  const OwnedTensor in = rank_.tensor(Category::communication, dtype_, {to.size(0), width}, "K/V for the cache");
  rank_.compute().gather_rows(out, from, leaving);
  rank_.wait(
      sequence_.post_all_to_all_v(buffer_of(ConstTensor(out.view())), send_counts, buffer_of(in.view()), recv_counts, kCache));
  rank_.compute().gather_rows(to, in.view(), where);
}

void Decoder::fill_cache(std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens) {
  const std::size_t count = cached(tokens.sequence());
  const auto rows = [](const Tensor& heads) { return heads.merged(2).select(0, 0); };
  move_rows(rows(cache_[layer].k->slice(1, 0, count)), rows(k), tokens);
  move_rows(rows(cache_[layer].v->slice(1, 0, count)), rows(v), tokens);
}

ConstTensor Decoder::prompt(std::span<const Token> ids) {
  if (ids.empty() || length_ + ids.size() > positions_) {
    throw Error(Cause::refused, fmt::format("a prompt of {} tokens; 1 to {} fit", ids.size(), positions_ - length_));
  }
  const std::span<const Token> first = ids.first(ids.size() - 1);
  if (!first.empty()) {
    model_.prefill(first, [this](std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens) {
      fill_cache(layer, k, v, tokens);
    });
    length_ = first.size();
  }
  return step(ids.back());
}

// --- one token ---------------------------------------------------------------------------------------------------------------

/// Returns x [1, h], which the rank that has the token's row broadcasts.
OwnedTensor Decoder::embed(Token token) {
  const Chunks& rows = model_.vocabulary_rows();
  const auto id = static_cast<std::size_t>(token);
  if (token < 0 || id >= config_.vocabulary) {
    throw Error(Cause::refused, fmt::format("token id {}: the vocabulary has {} ids", token, config_.vocabulary));
  }
  int owner = 0;
  while (id >= rows.offset(owner) + rows.count(owner)) ++owner;
  OwnedTensor x = row(dtype_, config_.hidden, "embedded token");
  Communicator& holders = model_.mesh().vocabulary();
  if (owner == holders.rank()) {
    const std::array<std::uint32_t, 1> local{static_cast<std::uint32_t>(id - rows.offset(owner))};
    rank_.compute().gather_rows(x, model_.vocabulary_weights().embedding, local);
  }
  rank_.wait(holders.post_broadcast(buffer_of(x.view()), owner, {.stream = Stream::kv, .purpose = Purpose::embedding}));
  if (!config_.rotary_positions()) rank_.compute().add(x, x.view(), model_.positions().slice(0, length_, 1));
  return x;
}

OwnedTensor Decoder::normed(const Tensor& x, const NormWeights& norm) {
  OwnedTensor y = row(dtype_, config_.hidden, "normed token");
  apply_norm(rank_.compute(), config_, y, x, norm);
  return y;
}

/// Rotates x [1, heads·d] to the current position.
void Decoder::rotate(const Tensor& x) {
  if (!rope_.exists()) return;
  const std::size_t d = config_.head_dim;
  rank_.compute().rope(x.reshaped({1, 1, x.elements() / d, d}), rope_, kernels::Rotation::forward);
}

void Decoder::sum_over_ranks(const Tensor& y) {
  Communicator& world = model_.mesh().world();
  if (world.size() == 1) return;
  rank_.wait(world.post_all_reduce(buffer_of(ConstTensor(y)), buffer_of(y), Reduction::sum, kDecoded));
}

/// Sends K and V [2, heads, d] of this rank's K/V heads at the new position to the rank that caches it.
void Decoder::store_new(std::size_t layer, const ConstTensor& kv) {
  const auto ranks = static_cast<std::size_t>(D());
  const std::size_t d = config_.head_dim;
  const auto keeper = length_ % ranks;
  std::vector<std::size_t> send_counts(ranks, 0);
  std::vector<std::size_t> recv_counts(ranks, 0);
  send_counts[keeper] = kv.elements();
  if (keeper == static_cast<std::size_t>(p())) {
    for (std::size_t r = 0; r < ranks; ++r) recv_counts[r] = 2 * shares_[r].kv.count * d;
  }
  const bool keeps = keeper == static_cast<std::size_t>(p());
  OwnedTensor in;
  ConstTensor all = kv.reshaped({kv.elements()});
  if (ranks > 1) {
    in = rank_.tensor(Category::communication, dtype_, {keeps ? 2 * slice_.kv.count * d : 0}, "new K and V");
    rank_.wait(sequence_.post_all_to_all_v(buffer_of(kv), send_counts, buffer_of(in.view()), recv_counts, kCache));
    all = in.view();
  }
  if (!keeps) return;
  std::size_t at = 0;
  for (const Share& share : shares_) {
    const HeadRange& heads = share.kv;
    if (heads.count == 0) continue;
    for (const OwnedTensor* cache : {&cache_[layer].k, &cache_[layer].v}) {
      const Tensor place = (*cache)->slice(1, length_ / ranks, 1).slice(2, heads.first, heads.count).select(0, 0).select(0, 0);
      rank_.compute().convert(place, all.slice(0, at, heads.count * d).reshaped({heads.count, d}));
      at += heads.count * d;
    }
  }
}

std::vector<std::size_t> Decoder::by_share(std::size_t width) const {
  std::vector<std::size_t> counts;
  for (const Share& share : shares_) counts.push_back(share.queries.count * width);
  return counts;
}

/// Returns O of this rank's share of heads over all positions, [1, heads·d], in the model's dtype. `own_q` [1, heads·d]: their
/// queries.
OwnedTensor Decoder::attended(std::size_t layer, const Tensor& own_q) {
  const std::size_t d = config_.head_dim;
  const std::size_t heads = slice_.queries.count;
  const std::size_t keys = cached(length_ + 1);
  const ConstTensor k = cache_[layer].k->slice(1, 0, keys);
  const ConstTensor v = cache_[layer].v->slice(1, 0, keys);
  const kernels::Attention all{.scale = 1 / std::sqrt(static_cast<double>(d)),
                               .mask = kernels::Mask::none(),
                               .heads = {config_.heads_per_kv_head(), slice_.queries.first, slice_.kv.first}};
  if (D() == 1) {
    OwnedTensor o = row(dtype_, heads * d, "attention output");
    const OwnedTensor lse = rank_.tensor(Category::workspace, sums_, {1, heads, 1}, "log-sum-exp");
    rank_.compute().flash_forward(all, o->reshaped({1, 1, heads, d}), lse, own_q.reshaped({1, 1, heads, d}), k, v);
    return o;
  }
  const OwnedTensor q = rank_.tensor(Category::communication, dtype_, {1, 1, heads, d}, "all queries");
  rank_.wait(sequence_.post_all_gather_v(buffer_of(ConstTensor(own_q)), buffer_of(q.view()), by_share(d), kDecoded));
  const OwnedTensor parts = rank_.tensor(Category::communication, sums_, {1, 1, heads, d + 1}, "partial attention");
  rank_.compute().flash_forward(all, parts->slice(3, 0, d), parts->slice(3, d, 1).select(0, 0), q.view(), k, v);
  return merged_heads(parts);
}

/// Returns O of its share's heads over all positions, [1, heads·d], in the model's dtype. `parts` [n_q, d + 1], in the type of
/// sums: this rank's partial O and log-sum-exp of every head of the slice.
OwnedTensor Decoder::merged_heads(const Tensor& parts) {
  const auto ranks = static_cast<std::size_t>(D());
  const std::size_t d = config_.head_dim;
  const std::size_t count = mine().queries.count;
  const OwnedTensor in = rank_.tensor(Category::communication, sums_, {ranks, 1, count, d + 1}, "partial attention");
  const std::vector<std::size_t> arriving(ranks, count * (d + 1));
  rank_.wait(
      sequence_.post_all_to_all_v(buffer_of(ConstTensor(parts)), by_share(d + 1), buffer_of(in.view()), arriving, kDecoded));
  OwnedTensor narrow = row(dtype_, count * d, "attention output");
  if (count == 0) return narrow;
  std::vector<ConstTensor> part_o;
  std::vector<ConstTensor> part_lse;
  for (std::size_t i = 1; i <= ranks; ++i) {  // in canonical order: the next rank's first, the own last
    const Tensor part = in->slice(0, (static_cast<std::size_t>(p()) + i) % ranks, 1);  // [1, 1, heads, d + 1]
    part_o.push_back(part.slice(3, 0, d));
    part_lse.push_back(part.slice(3, d, 1).select(0, 0));
  }
  const OwnedTensor o = rank_.tensor(Category::workspace, sums_, {1, 1, count, d}, "attention output");
  const OwnedTensor lse = rank_.tensor(Category::workspace, sums_, {1, count, 1}, "log-sum-exp");
  rank_.compute().merge_attention(1 / std::sqrt(static_cast<double>(d)), o, lse, part_o, part_lse);
  rank_.compute().convert(narrow, o->reshaped({1, count * d}));
  return narrow;
}

/// Returns y [1, h] in the type of sums.
OwnedTensor Decoder::attention(std::size_t layer, const ConstTensor& x) {
  ComputeStream& compute = rank_.compute();
  const std::size_t d = config_.head_dim;
  const AttentionRows W = attention_rows(layer);
  const std::size_t kv_rows = W.K.size(0);
  const BlockBiases biases(model_.parameters(), config_, layer);

  const std::size_t q_rows = W.Q.size(0);
  const OwnedTensor all_new = rank_.tensor(Category::communication, dtype_, {2 * kv_rows + q_rows}, "new K, V and queries");
  const Tensor kv = all_new->slice(0, 0, 2 * kv_rows).reshaped({2, kv_rows});
  const Tensor own_q = all_new->slice(0, 2 * kv_rows, q_rows).reshaped({1, q_rows});
  if (W.KVQ.dims() > 0) {
    compute.gemm(all_new->reshaped({1, all_new->size(0)}), x, W.KVQ.transposed(0, 1));
  } else {
    compute.gemm(own_q, x, W.Q.transposed(0, 1));
    compute.gemm(kv.slice(0, 0, 1), x, W.K.transposed(0, 1));
    compute.gemm(kv.slice(0, 1, 1), x, W.V.transposed(0, 1));
  }
  biases.query.slice((slice_.queries.first + mine().queries.first) * d, q_rows).add_to(compute, own_q);
  rotate(own_q);
  if (kv_rows > 0) {
    const std::size_t first = (slice_.kv.first + mine().kv.first) * d;
    biases.key.slice(first, kv_rows).add_to(compute, kv.slice(0, 0, 1));
    biases.value.slice(first, kv_rows).add_to(compute, kv.slice(0, 1, 1));
    rotate(kv.slice(0, 0, 1));
  }
  rank_.enter_stage(PassPart::attention, false,
                    [&] { return Block::stage(layer, "attention", fmt::format("forward of token {}", length_)); });
  rank_.look(Watched::input, x);
  rank_.look(Watched::queries, own_q);
  rank_.look(Watched::keys, kv.slice(0, 0, 1));
  rank_.look(Watched::values, kv.slice(0, 1, 1));
  store_new(layer, kv);
  const OwnedTensor o = attended(layer, own_q);
  rank_.look(Watched::attention_output, o.view());
  OwnedTensor y = rank_.tensor(Category::communication, sums_, {1, config_.hidden}, "attention result");
  compute.gemm(y, o.view(), W.Ot);
  sum_over_ranks(y);
  return y;
}

OwnedTensor Decoder::mlp(std::size_t layer, const ConstTensor& x) {
  ComputeStream& compute = rank_.compute();
  rank_.enter_stage(PassPart::mlp, false,
                    [&] { return Block::stage(layer, "MLP", fmt::format("forward of token {}", length_)); });
  rank_.look(Watched::input, x);
  const MlpMatrices W = mlp_rows(layer);
  const Chunks cut = mlp_cut();
  const MlpColumns columns(rank_, config_, dtype_, 1, 0, cut.count(p()), {});
  const BlockBiases biases(model_.parameters(), config_, layer);
  columns.project(x, W, biases.mlp.slice(slice_.first_row + cut.offset(p()), cut.count(p())));
  const OwnedTensor a = columns.activation();
  rank_.look(Watched::result, a.view());
  OwnedTensor y = rank_.tensor(Category::communication, sums_, {1, config_.hidden}, "MLP result");
  compute.gemm(y, a.view(), W.W2t);
  sum_over_ranks(y);
  return y;
}

ConstTensor Decoder::step(Token token) {
  if (length_ >= positions_) {
    throw Error(Cause::refused, fmt::format("the cache is full: {} tokens", positions_));
  }
  const TraceSpan span(rank_.trace(), "token", static_cast<std::int64_t>(length_));
  ComputeStream& compute = rank_.compute();
  const std::array<std::int64_t, 1> position{static_cast<std::int64_t>(length_)};
  if (rope_.exists()) compute.rope_table(rope_, position, config_.rope_theta);
  OwnedTensor x = embed(token);
  for (std::size_t layer = 0; layer < config_.layers; ++layer) {
    const TraceSpan span_of_layer(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    const BlockVectors vectors = model_.vectors(layer);
    const auto add = [&](const OwnedTensor& y, const Bias& bias) {
      bias.add_to(compute, y);
      compute.add(x, x.view(), y.view());
    };
    add(attention(layer, normed(x, vectors.attention).view()), vectors.attention_output);
    add(mlp(layer, normed(x, vectors.mlp).view()), vectors.mlp_output);
  }
  const Tensor head = model_.vocabulary_weights().head;
  const OwnedTensor own = rank_.tensor(Category::communication, sums_, {1, head.size(0)}, "logits");
  compute.gemm(own, normed(x, model_.final_norm_weights()).view(), head.transposed(0, 1));
  rank_.enter_stage(PassPart::head, false, [&] { return fmt::format("head, forward of token {}", length_); });
  rank_.look(Watched::input, x.view());
  rank_.look(Watched::result, own.view());
  std::vector<std::size_t> counts;
  Communicator& holders = model_.mesh().vocabulary();
  for (int r = 0; r < holders.size(); ++r) counts.push_back(model_.vocabulary_rows().count(r));
  rank_.wait(holders.post_all_gather_v(buffer_of(ConstTensor(own.view())), buffer_of(logits_.view()), counts,
                                       {.stream = Stream::kv, .purpose = Purpose::head}));
  ++length_;
  return logits_.view();
}

}  // namespace tsprun::detail
