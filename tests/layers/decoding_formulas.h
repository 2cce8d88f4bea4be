// Traffic of text generation (docs/algorithms.md, "Decoding") as closed formulas, counted head by head: payload bytes received by
// all ranks together, by purpose. The pass over the prompt moves what a forward pass over its tokens moves, plus K and V to the
// ranks that cache them. Each later token moves only activations, never weights.
#pragma once

#include "layers/layout/zigzag.h"
#include "layers/theory/flows.h"
#include "tests/layers/closed_formulas.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail::theory {

inline std::uint64_t as_count(int degree) { return static_cast<std::uint64_t>(degree); }

/// Returns how many K/V heads of a slice rank `rank` of the sequence axis computes for a token: those whose first query head of
/// the slice is among the rank's own.
inline std::uint64_t kv_heads_computed(const ModelConfig& model, const BlockSlice& slice, int rank, int ranks) {
  const Chunks queries = Chunks::balanced(ranks, slice.queries.count);
  const std::size_t begin = slice.queries.first + queries.offset(rank);
  std::uint64_t heads = 0;
  for (std::size_t j = slice.kv.first; j < slice.kv.end(); ++j) {
    const std::size_t reader = std::max(j * model.heads_per_kv_head(), slice.queries.first);
    if (reader >= begin && reader < begin + queries.count(rank)) ++heads;
  }
  return heads;
}

/// Returns the elements of K (and as many of V) that one token has on all tensor ranks together.
inline std::uint64_t kv_width(const MeshSetting& of) {
  const ModelConfig& model = of.setting.model;
  std::uint64_t heads = 0;
  for (int t = 0; t < of.layout.tensor(); ++t) heads += BlockSlice::of(model, t, of.layout.tensor()).kv.count;
  return heads * model.head_dim;
}

/// Returns the traffic of the token at `position`, counted from 0. Per layer: q, partial attention and its log-sum-exp, and two
/// sums of h elements (`activations`), and new K and V (`kv`); once: the token's row (`embedding`) and its logits (`head`). It
/// depends on the position only through the rank that caches it (`position` modulo the sequence axis), and not at all on the
/// number of parameters. Ignores batch and sequence of the setting. `summed`: the bytes of one such sum, of all ranks together.
inline PurposeBytes token_traffic(const MeshSetting& of, std::size_t position, std::uint64_t summed) {
  const ModelConfig& model = of.setting.model;
  const auto& [element, accumulated, lse] = of.setting.bytes;
  const int T = of.layout.tensor();
  const int D = of.layout.sequence();
  const int W = T * D;
  const std::uint64_t h = model.hidden;
  const std::uint64_t d = model.head_dim;
  const std::uint64_t L = model.layers;

  const std::uint64_t q = model.query_heads * d * element;
  const std::uint64_t parts = model.query_heads * (d * accumulated + 2 * lse);
  const int keeper = static_cast<int>(position % as_count(D));
  std::uint64_t arriving = 0;  // K/V heads that the caching rank of each tensor rank's group receives
  for (int t = 0; t < T; ++t) {
    const BlockSlice slice = BlockSlice::of(model, t, T);
    arriving += slice.kv.count - kv_heads_computed(model, slice, keeper, D);
  }
  const int holders = of.layout.cuts_vocabulary_over_tensor() ? T : W;
  const std::uint64_t copies = as_count(W / holders);

  PurposeBytes bytes;
  bytes[Purpose::embedding] = h * element * hops(holders) * copies;
  bytes[Purpose::activations] = L * ((q + parts) * hops(D) + 2 * summed);
  bytes[Purpose::kv] = L * 2 * arriving * d * element;
  bytes[Purpose::head] = model.vocabulary * accumulated * hops(holders) * copies;
  return bytes;
}

/// Returns the traffic of a prompt: all tokens but the last by a forward pass without a head, the last as a token of its own.
/// `ids` holds at least one token.
inline PurposeBytes prompt_traffic(const MeshSetting& of, std::span<const std::int32_t> ids, std::uint64_t summed) {
  PurposeBytes bytes = token_traffic(of, ids.size() - 1, summed);
  const std::span<const std::int32_t> first = ids.first(ids.size() - 1);
  if (first.empty()) return bytes;
  MeshSetting pass = of;
  pass.setting.batch = 1;
  pass.setting.sequence = first.size();
  PurposeBytes forward = step_traffic(pass.setting, pass.layout).forward;
  if (!pass.layout.cuts_vocabulary_over_tensor())
    forward[Purpose::embedding] = embedding(pass.setting, remote_rows(first, pass.setting, pass.layout)).forward.total();
  forward[Purpose::head] = forward[Purpose::other] = 0;
  // K and V go from the ranks that computed them, by zigzag, to those that cache them.
  const Zigzag zigzag(first.size(), of.layout.sequence());
  std::uint64_t moving = 0;
  for (std::size_t s = 0; s < first.size(); ++s) {
    if (static_cast<std::size_t>(owner_of(zigzag, s)) != s % as_count(of.layout.sequence())) ++moving;
  }
  forward[Purpose::kv] += of.setting.model.layers * 2 * moving * kv_width(of) * of.setting.bytes.element;
  return bytes += forward;
}

/// Returns the traffic of `count` tokens at positions `first`, `first` + 1, ….
inline PurposeBytes tokens_traffic(const MeshSetting& of, std::size_t first, std::size_t count, std::uint64_t summed) {
  PurposeBytes all;
  for (std::size_t position = first; position < first + count; ++position) all += token_traffic(of, position, summed);
  return all;
}

}  // namespace tsprun::detail::theory
