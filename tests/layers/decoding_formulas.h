// Traffic of text generation (docs/algorithms.md, "Decoding") as closed formulas, counted head by head: payload bytes received by
// all ranks together, by purpose. The pass over the prompt moves what a forward pass over its tokens moves, plus K and V to the
// ranks that cache them. Each later token moves only activations, never weights.
#pragma once

#include "tests/layers/step_formulas.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail::formulas {

/// Returns how many K/V heads of slice t rank p of the D ranks with other tokens computes for a token: those whose first query
/// head of the slice is among the rank's own.
inline Count kv_heads_computed(const Symbols& s, int T, int t, int D, int p) {
  const Heads slice = queries_of(s, T, t);
  const Count begin = slice.first + begin_of(slice.count, D, p);
  Count heads = 0;
  for (Count j = read_by(s, slice).first; j < read_by(s, slice).end(); ++j) {
    const Count reader = std::max(j * s.g, slice.first);
    if (reader >= begin && reader < begin + part_of(slice.count, D, p)) ++heads;
  }
  return heads;
}

/// Returns the traffic of the token at `position`, counted from 0. Per layer: q, partial attention and its log-sum-exp, and two
/// sums of h elements (`activations`), and new K and V (`kv`); once: the token's row (`embedding`) and its logits (`head`). It
/// depends on the position only through the rank that caches it (`position` modulo the sequence axis), and not at all on the
/// number of parameters. Ignores batch and sequence of the setting. `summed`: the bytes of one such sum, of all ranks together.
inline PurposeBytes token_traffic(const Setting& of, const Layout& layout, std::size_t position, Count summed) {
  const Symbols s(of);
  const Degrees n(layout);
  // q and partial results, of all layers
  const Count attended =
      sum_of_layers(of, [](const Symbols& one) { return one.a * one.beta + one.n_h * (one.d * one.beta_a + 2 * one.beta_l); });
  const int keeper = static_cast<int>(position % as_count(n.D));
  // Elements of K/V heads that the caching rank of each tensor rank's group receives
  const Count arriving = sum_of_layers(of, [&](const Symbols& one) {
    Count heads = 0;
    for (int t = 0; t < n.T && one.own; ++t)
      heads += read_by(one, queries_of(one, n.T, t)).count - kv_heads_computed(one, n.T, t, n.D, keeper);
    return heads * one.d;
  });
  const Count others = as_count(n.cutters()) - 1;

  PurposeBytes bytes;
  bytes[Purpose::embedding] = s.h * s.beta * others * as_count(n.copies());
  bytes[Purpose::activations] = attended * (as_count(n.D) - 1) + s.L * 2 * summed;
  // Norms over all heads: two sums of one number each.
  for (std::size_t layer = 0; layer < of.model.layers; ++layer) {
    if (of.model.layer(layer).query_key_norm == QueryKeyNorm::rows)
      bytes[Purpose::activations] += (of.model.layer(layer).layers_to_lender == 0 ? 2 : 1) * summed_over(s, 1, n.T * n.D);
  }
  bytes[Purpose::kv] = 2 * arriving * s.beta;
  bytes[Purpose::head] = s.V * s.beta_a * others * as_count(n.copies());
  return bytes;
}

/// Returns the traffic of a prompt: all tokens but the last by a forward pass without a head, the last as a token of its own.
/// `ids` holds at least one token; the layout has no replicas.
inline PurposeBytes prompt_traffic(const Setting& of, const Layout& layout, std::span<const std::int32_t> ids, Count summed) {
  PurposeBytes bytes = token_traffic(of, layout, ids.size() - 1, summed);
  const std::span<const std::int32_t> first = ids.first(ids.size() - 1);
  if (first.empty()) return bytes;
  const Degrees n(layout);
  Setting pass = of;
  pass.batch = 1;
  pass.sequence = first.size();
  PurposeBytes forward = step(pass, layout, remote_rows(first, pass, layout)).forward;
  forward[Purpose::head] = forward[Purpose::other] = 0;
  // K and V go from the ranks that computed them, by zigzag, to those that cache them.
  const Symbols s(pass);
  Count moving = 0;
  for (Count position = 0; position < s.S; ++position) {
    if (as_count(owner_of(s.S, n.D, position)) != position % as_count(n.D)) ++moving;
  }
  forward[Purpose::kv] +=
      2 * moving * s.beta * sum_of_layers(pass, [&](const Symbols& one) { return one.own ? copies_read(one, n.T) * one.d : 0; });
  return bytes += forward;
}

/// Returns the traffic of `count` tokens at positions `first`, `first` + 1, ….
inline PurposeBytes tokens_traffic(const Setting& of, const Layout& layout, std::size_t first, std::size_t count, Count summed) {
  PurposeBytes all;
  for (std::size_t position = first; position < first + count; ++position) all += token_traffic(of, layout, position, summed);
  return all;
}

}  // namespace tsprun::detail::formulas
