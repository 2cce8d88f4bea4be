#include "layers/tsp/decode.h"

#include "core/kernels/check.h"
#include "layers/mlp_columns.h"
#include "layers/packs.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace tsp {

namespace {

const CallOptions kDecoded{.stream = Stream::kv, .purpose = Purpose::activations};
const CallOptions kCache{.stream = Stream::kv, .purpose = Purpose::kv};

}  // namespace

TspDecoder::TspDecoder(Rank& rank, Model& model, std::size_t positions)
    : rank_(rank),
      model_(model),
      axis_(model.mesh().sequence()),
      config_(model.options().config),
      dtype_(model.options().dtype),
      sums_(kernels::summed_in(dtype_)),
      heads_(config_.query_heads, config_.kv_heads, axis_.size()),
      positions_(positions),
      logits_(rank.tensor(Category::communication, sums_, {config_.vocabulary}, "logits")) {
  if (config_.rotary_positions()) rope_ = rank.tensor(Category::workspace, sums_, {1, config_.head_dim}, "RoPE table");
  else if (positions > config_.max_positions) {
    throw Error(Cause::refused,
                fmt::format("{} tokens in all; {} has {} learned positions", positions, config_.name, config_.max_positions));
  }
  constexpr int kMostParts = 64;  // of merge_attention()
  if (D() > kMostParts) throw Error(Cause::refused, fmt::format("decoding on {} ranks; at most {} work", D(), kMostParts));
  for (std::size_t layer = 0; layer < config_.layers; ++layer) {
    const auto room = [&](std::string_view what) {
      return rank_.tensor(Category::activations, dtype_, {1, cached(positions), config_.kv_heads, config_.head_dim}, what);
    };
    cache_.push_back({.k = room("K cache"), .v = room("V cache")});
  }
}

/// Positions below `length` that this rank caches.
std::size_t TspDecoder::cached(std::size_t length) const {
  const auto ranks = static_cast<std::size_t>(D());
  const auto me = static_cast<std::size_t>(p());
  return length / ranks + (me < length % ranks ? 1 : 0);
}

// --- the prompt --------------------------------------------------------------------------------------------------------------

/// Rows of `from` [S_p, n_kv·d], this rank's tokens by zigzag, to the ranks that cache their positions; `to` [cached, n_kv·d] by
/// position.
void TspDecoder::move_rows(const Tensor& to, const ConstTensor& from, const TokenLayout& tokens) {
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
  rank_.wait(axis_.post_all_to_all_v(buffer_of(ConstTensor(out.view())), send_counts, buffer_of(in.view()), recv_counts, kCache));
  rank_.compute().gather_rows(to, in.view(), where);
}

void TspDecoder::fill_cache(std::size_t layer, const Tensor& k, const Tensor& v, const TokenLayout& tokens) {
  const std::size_t count = cached(tokens.sequence());
  const auto rows = [](const Tensor& heads) { return heads.merged(2).select(0, 0); };
  move_rows(rows(cache_[layer].k->slice(1, 0, count)), rows(k), tokens);
  move_rows(rows(cache_[layer].v->slice(1, 0, count)), rows(v), tokens);
}

ConstTensor TspDecoder::prompt(std::span<const Token> ids) {
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

/// x [1, h], from the rank that has the token's row.
OwnedTensor TspDecoder::embed(Token token) {
  const Chunks& rows = model_.vocabulary_rows();
  const auto id = static_cast<std::size_t>(token);
  if (token < 0 || id >= config_.vocabulary) {
    throw Error(Cause::refused, fmt::format("token id {}: the vocabulary has {} ids", token, config_.vocabulary));
  }
  int owner = 0;
  while (id >= rows.offset(owner) + rows.count(owner)) ++owner;
  OwnedTensor x = row(dtype_, config_.hidden, "embedded token");
  if (owner == p()) {
    const std::array<std::uint32_t, 1> local{static_cast<std::uint32_t>(id - rows.offset(owner))};
    rank_.compute().gather_rows(x, model_.vocabulary_weights().embedding, local);
  }
  rank_.wait(axis_.post_broadcast(buffer_of(x.view()), owner, {.stream = Stream::kv, .purpose = Purpose::embedding}));
  if (!config_.rotary_positions()) rank_.compute().add(x, x.view(), model_.positions().slice(0, length_, 1));
  return x;
}

OwnedTensor TspDecoder::normed(const Tensor& x, const NormWeights& norm) {
  OwnedTensor y = row(dtype_, config_.hidden, "normed token");
  apply_norm(rank_.compute(), config_, y, x, norm);
  return y;
}

/// x [1, heads·d], to the present position.
void TspDecoder::rotate(const Tensor& x) {
  if (!rope_.exists()) return;
  const std::size_t d = config_.head_dim;
  rank_.compute().rope(x.reshaped({1, 1, x.elements() / d, d}), rope_, kernels::Rotation::forward);
}

void TspDecoder::sum_over_ranks(const Tensor& y) {
  rank_.wait(axis_.post_all_reduce(buffer_of(ConstTensor(y)), buffer_of(y), Reduction::sum, kDecoded));
}

/// The new position's K and V [2, heads, d] of this rank's K/V heads go to the rank that caches it.
void TspDecoder::store_new(std::size_t layer, const ConstTensor& kv) {
  const auto ranks = static_cast<std::size_t>(D());
  const std::size_t d = config_.head_dim;
  const auto keeper = length_ % ranks;
  std::vector<std::size_t> send_counts(ranks, 0);
  std::vector<std::size_t> recv_counts(ranks, 0);
  send_counts[keeper] = kv.elements();
  if (keeper == static_cast<std::size_t>(p())) {
    for (int r = 0; r < D(); ++r) recv_counts[static_cast<std::size_t>(r)] = 2 * heads_.kv_heads_owned(r).count * d;
  }
  const bool mine = keeper == static_cast<std::size_t>(p());
  const OwnedTensor in = rank_.tensor(Category::communication, dtype_, {mine ? 2 * config_.kv_heads * d : 0}, "new K and V");
  rank_.wait(axis_.post_all_to_all_v(buffer_of(kv), send_counts, buffer_of(in.view()), recv_counts, kCache));
  if (!mine) return;
  std::size_t at = 0;
  for (int r = 0; r < D(); ++r) {
    const HeadRange heads = heads_.kv_heads_owned(r);
    if (heads.count == 0) continue;
    for (const OwnedTensor* cache : {&cache_[layer].k, &cache_[layer].v}) {
      const Tensor place = (*cache)->slice(1, length_ / ranks, 1).slice(2, heads.first, heads.count).select(0, 0).select(0, 0);
      rank_.compute().convert(place, in->slice(0, at, heads.count * d).reshaped({heads.count, d}));
      at += heads.count * d;
    }
  }
}

/// `parts` [n_h, d + 1]: this rank's partial O and log-sum-exp of every head, of the type of sums. O of this rank's own heads
/// over all positions, [1, heads·d], in the model's dtype.
OwnedTensor TspDecoder::merged_heads(const Tensor& parts) {
  const auto ranks = static_cast<std::size_t>(D());
  const std::size_t d = config_.head_dim;
  const HeadRange mine = heads_.query_heads(p());
  const OwnedTensor in = rank_.tensor(Category::communication, sums_, {ranks, 1, mine.count, d + 1}, "partial attention");
  rank_.wait(axis_.post_all_to_all(buffer_of(ConstTensor(parts)), buffer_of(in.view()), kDecoded));
  std::vector<ConstTensor> part_o;
  std::vector<ConstTensor> part_lse;
  for (std::size_t i = 1; i <= ranks; ++i) {  // in canonical order: the next rank's first, the own last
    const Tensor part = in->slice(0, (static_cast<std::size_t>(p()) + i) % ranks, 1);  // [1, 1, heads, d + 1]
    part_o.push_back(part.slice(3, 0, d));
    part_lse.push_back(part.slice(3, d, 1).select(0, 0));
  }
  const OwnedTensor o = rank_.tensor(Category::workspace, sums_, {1, 1, mine.count, d}, "attention output");
  const OwnedTensor lse = rank_.tensor(Category::workspace, sums_, {1, mine.count, 1}, "log-sum-exp");
  rank_.compute().merge_attention(o, lse, part_o, part_lse);
  OwnedTensor narrow = row(dtype_, mine.count * d, "attention output");
  rank_.compute().convert(narrow, o->reshaped({1, mine.count * d}));
  return narrow;
}

/// y [1, h], of the type of sums.
OwnedTensor TspDecoder::attention(std::size_t layer, const ConstTensor& x) {
  ComputeStream& compute = rank_.compute();
  const std::size_t d = config_.head_dim;
  const HeadRange mine = heads_.query_heads(p());
  const std::size_t kv_rows = heads_.kv_heads_owned(p()).count * d;
  const ParameterStore& store = model_.parameters();
  const auto weights = [&](AttentionPart part) { return store.values(attention_pack_number(layer), part, 1); };

  const OwnedTensor kv = rank_.tensor(Category::communication, dtype_, {2, kv_rows}, "new K and V");
  const OwnedTensor own_q = rank_.tensor(Category::communication, dtype_, {1, mine.count * d}, "queries");
  const BlockBiases biases(store, config_, layer);
  compute.gemm(own_q, x, weights(kPartQ).transposed(0, 1));
  biases.query.slice(mine.first * d, mine.count * d).add_to(compute, own_q);
  rotate(own_q);
  if (kv_rows > 0) {
    compute.gemm(kv->slice(0, 0, 1), x, weights(kPartK).transposed(0, 1));
    compute.gemm(kv->slice(0, 1, 1), x, weights(kPartV).transposed(0, 1));
    const std::size_t first = heads_.kv_heads_owned(p()).first * d;
    biases.key.slice(first, kv_rows).add_to(compute, kv->slice(0, 0, 1));
    biases.value.slice(first, kv_rows).add_to(compute, kv->slice(0, 1, 1));
    rotate(kv->slice(0, 0, 1));
  }
  const OwnedTensor q = rank_.tensor(Category::communication, dtype_, {1, 1, config_.query_heads, d}, "all queries");
  rank_.wait(axis_.post_all_gather(buffer_of(ConstTensor(own_q.view())), buffer_of(q.view()), kDecoded));
  store_new(layer, kv.view());

  const std::size_t keys = cached(length_ + 1);
  const OwnedTensor parts = rank_.tensor(Category::communication, sums_, {1, 1, config_.query_heads, d + 1}, "partial attention");
  const kernels::Attention all{.scale = 1 / std::sqrt(static_cast<double>(d)),
                               .mask = kernels::Mask::none(),
                               .heads = {config_.heads_per_kv_head(), 0, 0}};
  compute.flash_forward(all, parts->slice(3, 0, d), parts->slice(3, d, 1).select(0, 0), q.view(),
                        cache_[layer].k->slice(1, 0, keys), cache_[layer].v->slice(1, 0, keys));
  const OwnedTensor o = merged_heads(parts);
  OwnedTensor y = rank_.tensor(Category::communication, sums_, {1, config_.hidden}, "attention result");
  compute.gemm(y, o.view(), weights(kPartO));
  sum_over_ranks(y);
  return y;
}

OwnedTensor TspDecoder::mlp(std::size_t layer, const ConstTensor& x) {
  ComputeStream& compute = rank_.compute();
  const ParameterStore& store = model_.parameters();
  const MlpMatrices W(store.values(mlp_pack_number(layer)), config_);
  const Chunks cut = Chunks::balanced(D(), config_.intermediate);
  const MlpColumns columns(rank_, config_, dtype_, 1, 0, cut.count(p()), {});
  columns.project(x, W, BlockBiases(store, config_, layer).mlp.slice(cut.offset(p()), cut.count(p())));
  const OwnedTensor a = columns.activation();
  OwnedTensor y = rank_.tensor(Category::communication, sums_, {1, config_.hidden}, "MLP result");
  compute.gemm(y, a.view(), W.W2t);
  sum_over_ranks(y);
  return y;
}

ConstTensor TspDecoder::step(Token token) {
  if (length_ >= positions_) {
    throw Error(Cause::refused, fmt::format("the cache is full: {} tokens", positions_));
  }
  ComputeStream& compute = rank_.compute();
  const std::array<std::int64_t, 1> position{static_cast<std::int64_t>(length_)};
  if (rope_.exists()) compute.rope_table(rope_, position, config_.rope_theta);
  OwnedTensor x = embed(token);
  for (std::size_t layer = 0; layer < config_.layers; ++layer) {
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
  std::vector<std::size_t> counts;
  for (int r = 0; r < D(); ++r) counts.push_back(model_.vocabulary_rows().count(r));
  rank_.wait(axis_.post_all_gather_v(buffer_of(ConstTensor(own.view())), buffer_of(logits_.view()), counts,
                                     {.stream = Stream::kv, .purpose = Purpose::head}));
  ++length_;
  return logits_.view();
}

}  // namespace tsp
