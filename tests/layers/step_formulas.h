// The oracle of a whole training step under any layout, and of the memory of one rank in it, made of the closed formulas of its
// blocks. Like these it includes nothing that it judges.
#pragma once

#include "tests/layers/closed_formulas.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail::formulas {

// --- a whole step under any layout -------------------------------------------------------------------------------------------

/// Degrees and ways of a layout, as they are written.
struct Degrees {
  int dp, T, D;  // dp: with those of shard
  int K;         // ranks over which packs are cut, where dp's ranks share anything
  bool tsp, zero3, sequence;
  bool zero1, cut;  // dp's ranks share optimizer states alone; weights and gradients, too
  SequenceExchange exchange;

  explicit Degrees(const Layout& of)
      : dp(of.degree(AxisKind::dp) * of.degree(AxisKind::shard)),
        T(of.degree(AxisKind::tp)),
        D(of.degree(AxisKind::sp) * of.degree(AxisKind::tsp) * of.degree(AxisKind::zero3)),
        K(of.degree(AxisKind::shard) > 1 ? of.degree(AxisKind::shard) : dp),
        tsp(of.degree(AxisKind::tsp) > 1),
        zero3(of.degree(AxisKind::zero3) > 1),
        sequence(T > 1 && static_cast<TensorExchange>(of.variant(AxisKind::tp)) == TensorExchange::sequence),
        zero1(dp > 1 && static_cast<DataSharing>(of.variant(AxisKind::dp)) == DataSharing::zero1),
        cut(dp > 1 && static_cast<DataSharing>(of.variant(AxisKind::dp)) == DataSharing::zero3),
        exchange(static_cast<SequenceExchange>(of.variant(AxisKind::sp))) {}
  /// Returns whether ranks have parts of the weights that all of them compute with.
  bool shares_weights() const { return tsp || zero3; }
  bool plain_tensor() const { return T > 1 && !sequence; }
  /// Returns the number of ranks over which the vocabulary's rows are cut, and of ranks with copies of them.
  int cutters() const { return plain_tensor() ? T : sequence ? T * D : D; }
  int copies() const { return plain_tensor() ? D : 1; }
};

/// Returns R of one replica if every rank's tokens are spread evenly over the vocabulary's parts: of BS tokens of a micro-batch
/// BS − BS/n for n parts.
inline Count even_remote_rows(const Setting& of, const Layout& layout) {
  const Symbols s(of, Degrees(layout).dp);
  return of.micro_batches * (s.B * s.S - s.B * s.S / as_count(Degrees(layout).cutters()));
}

/// Returns what a block of one replica moves with each micro-batch. Sums of owned gradients are complete with each.
inline Traffic block_of_micro_batch(const Symbols& s, const Degrees& n) {
  Traffic traffic;
  if (n.D > 1) {
    if (n.shares_weights()) traffic += weights_shared(s, n.D, n.T);
    if (n.shares_weights() || n.exchange == SequenceExchange::gather) traffic += kv_gathered(s, n.D, n.T);
    else if (n.exchange == SequenceExchange::ring) traffic += kv_round_the_ring(s, n.D, n.T);
    else traffic += heads_exchanged(s, n.D, n.T);
  }
  if (n.T > 1) traffic += slices_summed(s, n.T, n.sequence, 0);
  return traffic;
}

/// Returns what moves over dp where its ranks have parts of the weights (`--dp zero3`). With each micro-batch a block's weights
/// are gathered forward and backward and its gradients scattered, P(2β + β_a)ρ; embedding and head are gathered once, or a tied
/// table twice, V·h(β + β_a)ρ each. Vectors, which every rank has, are gathered after the update.
inline Traffic weights_over_data(const Setting& of, const Degrees& n, Count blocks, Count table) {
  const Symbols s(of);
  const Count others = as_count(n.K - 1) * as_count(n.dp / n.K);
  const Count M = of.micro_batches;
  Traffic all;
  all.forward[Purpose::weights] = M * (blocks + 2 * table) * s.beta * others;
  all.backward[Purpose::weights] = (M * blocks + replicated_elements(of) * as_count(n.T * n.D)) * s.beta * others;
  all.backward[Purpose::gradients] = M * blocks * s.beta_a * others;
  all.backward[Purpose::embedding] = M * table * s.beta_a * others;
  if (!s.tied) all.backward[Purpose::head] = M * table * s.beta_a * others;
  return all;
}

/// Returns the traffic of a training step, but for `other`, for which ranks choose algorithms. `remote_rows`: R of one replica,
/// of all its micro-batches; not used under plain tp.
inline Traffic step(const Setting& of, const Layout& layout, Count remote_rows) {
  const Degrees n(layout);
  Setting part = of;  // a micro-batch
  part.batch /= as_count(n.dp) * of.micro_batches;
  part.micro_batches = 1;
  const Symbols s(part);
  Traffic each = over_layers(part, [&](const Setting& one) { return block_of_micro_batch(Symbols(one), n); });
  each += rows_normed(part, n.T);
  Traffic once;     // in each replica
  Traffic by_part;  // once in all replicas together, if they have parts of the weights: copies of a part are summed
  const Count groups = as_count(n.dp / n.K);  // ranks of dp beside shard, which have the same parts
  if (n.D > 1 && !n.shares_weights() && !n.cut)
    once += over_layers(part, [&](const Setting& one) { return gradients_summed(Symbols(one), n.D, n.T); });
  // Copies of K/V heads are summed before a gradient is cut, so with each micro-batch.
  if (n.T > 1) {
    Traffic copies;
    copies.backward[Purpose::gradients] +=
        sum_of_layers(part, [&](const Symbols& one) { return copies_summed(one, n.T, n.shares_weights() ? 1 : n.D); });
    (n.cut ? each : once) += copies;
  }
  if (n.plain_tensor()) {
    each += tp_embedding(part, n.T) + tp_head(part, n.T);
  } else if (n.cutters() > 1) {
    each += head(part, n.cutters());
    once += embedding(part, remote_rows);
  }
  // Of all blocks, with copies of K/V heads.
  const Count all_blocks = sum_of_layers(part, [&](const Symbols& one) { return one.P_L() + copied_elements(one, n.T); });
  // Copies of the vocabulary's rows: gradients of each are summed.
  const Count rows = s.V * s.h;
  if (!n.cut) {
    once.backward[Purpose::embedding] += summed_over(s, rows, n.copies());
    if (!s.tied) once.backward[Purpose::head] += summed_over(s, rows, n.copies());
  } else {
    // All that have the same part, in a replica and beside shard.
    const Count copies = groups * (n.shares_weights() ? 1 : as_count(n.D));
    by_part.backward[Purpose::gradients] += 2 * all_blocks * s.beta_a * (copies - 1);
    const Count of_table = 2 * rows * s.beta_a * (groups * as_count(n.copies()) - 1);
    by_part.backward[Purpose::embedding] += of_table;
    if (!s.tied) by_part.backward[Purpose::head] += of_table;
  }

  Traffic all = (each * of.micro_batches + once) * as_count(n.dp) + by_part;
  // dp: gradients of all that the ranks of a replica hold, 2Nβ_aρ; zero1: Nβ_aρ, and the weights Nβρ.
  const Count blocks = all_blocks * (n.shares_weights() ? 1 : as_count(n.D));
  const Count table = rows * as_count(n.copies());
  if (n.cut) return all + weights_over_data(of, n, blocks, table);
  // With shard=K of dp·K replicas: scattered over K, the parts summed over dp.
  const Count scattered = as_count(n.K - 1) * groups;
  const auto summed = [&](Count elements) {
    return n.zero1 ? elements * s.beta_a * (scattered + 2 * (groups - 1)) : summed_over(s, elements, n.dp);
  };
  all.backward[Purpose::gradients] += summed(blocks);
  all.backward[Purpose::embedding] += summed(table);
  if (!s.tied) all.backward[Purpose::head] += summed(table);
  if (n.zero1) {
    const Count held = blocks + (s.tied ? 1 : 2) * table + replicated_elements(of) * as_count(n.T * n.D);
    all.backward[Purpose::weights] += held * s.beta * scattered;
  }
  return all;
}

/// Returns a whole step under TSP, norm gains, biases and learned positions among it.
inline Traffic tsp_step(const Setting& of, int D, Count remote_rows) {
  Traffic traffic = step(of, Layout::tsp(D), remote_rows);
  traffic.backward[Purpose::other] += summed_over(Symbols(of), replicated_elements(of), D);
  return traffic;
}

/// Returns R for ids [B, S] in natural order, in one replica. Rows are cut over the ranks with different tokens; with T slices of
/// tokens these are numbered (sequence, tensor), and a slice is a part of a rank's B·S_p rows.
inline Count remote_rows(std::span<const std::int32_t> ids, const Setting& of, const Layout& layout) {
  const Degrees n(layout);
  const int T = n.sequence ? n.T : 1;
  const Count S = of.sequence;
  std::vector<std::vector<Count>> ids_of(static_cast<std::size_t>(n.D));  // of each rank of the sequence axis
  for (std::size_t b = 0; b < ids.size() / S; ++b) {
    for (int p = 0; p < n.D; ++p) {
      for (Count position = 0; position < S; ++position) {
        if (owner_of(S, n.D, position) == p)
          ids_of[static_cast<std::size_t>(p)].push_back(static_cast<Count>(ids[b * S + position]));
      }
    }
  }
  Count remote = 0;
  for (int holder = 0; holder < n.D * T; ++holder) {
    const Count first = begin_of(of.model.vocabulary, n.D * T, holder);
    const Count end = first + part_of(of.model.vocabulary, n.D * T, holder);
    const std::vector<Count>& all = ids_of[static_cast<std::size_t>(holder / T)];
    const Count begin = begin_of(all.size(), T, holder % T);
    for (Count i = begin; i < begin + part_of(all.size(), T, holder % T); ++i) remote += all[i] < first || all[i] >= end;
  }
  return remote;
}

// --- memory of one rank: t on the tensor axis, p among the ranks with other tokens -------------------------------------------

/// Elements of the packs of a layer's parameters that a rank holds: packs are what an all_reduce of dp sums at a time.
struct HeldBlock {
  Count attention, mlp;
};
inline HeldBlock held_block(const Symbols& s, const Layout& layout, int t, int p) {
  const Degrees n(layout);
  const Heads slice = queries_of(s, n.T, t);
  const Count slice_rows = part_of(s.f, n.T, t);
  Count attention = 0;
  Count mlp = s.matrices * slice_rows * s.h;
  if (n.tsp) {
    // A K/V head lies with the owner of the first of the slice's query heads that read it.
    const Heads own{slice.first + begin_of(slice.count, n.D, p), part_of(slice.count, n.D, p)};
    Count kv = 0;
    for (Count head = read_by(s, slice).first; head < read_by(s, slice).end(); ++head) {
      const Count reader = head * s.g < slice.first ? slice.first : head * s.g;
      kv += reader >= own.first && reader < own.end();
    }
    attention = (2 * own.count + s.m * kv) * s.d * s.h;
    mlp = s.matrices * part_of(slice_rows, n.D, p) * s.h;
  } else {
    attention = (2 * slice.count + s.m * read_by(s, slice).count) * s.d * s.h;
    if (n.zero3) {  // rows of width h, whatever they belong to
      attention = part_of(attention / s.h, n.D, p) * s.h;
      mlp = part_of(mlp / s.h, n.D, p) * s.h;
    }
  }
  return {attention, mlp};
}

/// Elements of the other packs that a rank holds.
struct HeldPacks {
  Count table;  // embedding; head likewise
  Count vectors, projections;
};
inline HeldPacks held_packs(const Setting& of, const Layout& layout, int t, int p) {
  const Symbols s(of);
  const Degrees n(layout);
  const int cutter = n.plain_tensor() ? t : n.sequence ? p * n.T + t : p;
  return {part_of(s.V, n.cutters(), cutter) * s.h, replicated_elements(of) - projection_elements(of), projection_elements(of)};
}

/// Returns the parameters that a rank holds, in elements: the r-th part of each block's and table's under `--dp zero3`.
inline Count held_elements(const Setting& of, const Layout& layout, int t, int p, int r = 0) {
  const Symbols s(of);
  const Degrees n(layout);
  const HeldPacks held = held_packs(of, layout, t, p);
  const auto part = [&](Count pack) { return n.cut ? part_of(pack, n.K, r % n.K) : pack; };
  const Count blocks = sum_of_layers(of, [&](const Symbols& one) {
    const HeldBlock block = held_block(one, layout, t, p);
    return part(block.attention) + part(block.mlp);
  });
  return blocks + (s.tied ? 1 : 2) * part(held.table) + held.vectors + held.projections;
}
/// Returns of how many it holds the optimizer states: where dp's ranks share them the r-th part of each pack.
inline Count state_elements(const Setting& of, const Layout& layout, int t, int p, int r) {
  const Symbols s(of);
  const Degrees n(layout);
  const HeldPacks held = held_packs(of, layout, t, p);
  const auto part = [&](Count pack) { return n.zero1 || n.cut ? part_of(pack, n.K, r % n.K) : pack; };
  const Count blocks = sum_of_layers(of, [&](const Symbols& one) {
    const HeldBlock block = held_block(one, layout, t, p);
    return part(block.attention) + part(block.mlp);
  });
  return blocks + (s.tied ? 1 : 2) * part(held.table) + part(held.vectors) + part(held.projections);
}

/// Returns how many residuals a layer keeps: the sublayers' inputs, of which sublayers side by side share one, and the results
/// that go into norms behind them.
inline Count kept_residuals(const LayerSpec& layer) {
  switch (layer.norms) {
    case NormPlaces::before: return 2;
    case NormPlaces::after:
    case NormPlaces::around: return 4;
    case NormPlaces::shared: return 1;
  }
  return 0;
}

/// Returns the bytes that a layer saves for each local token: the table "Saved bytes per local token and layer".
inline Count saved_bytes_per_token(const Setting& of, const LayerSpec& layer) {
  const Symbols s(layer_alone(of, layer));
  const Count pre_activations = (s.matrices - 1) * s.f;
  // What goes into the norms of heads.
  const Count products =
      (layer.norms_queries_and_keys() ? s.a + (s.own ? s.k : 0) : 0) + (layer.norms_values && s.m == 2 ? s.k : 0);
  const Count kept_kv = s.own ? 2 * s.k : 0;
  const Count lent = s.lends ? 2 * s.k : 0;  // in every mode
  const Count residuals = kept_residuals(layer) * s.h;
  switch (s.recompute) {
    case Recompute::none: return s.beta * (residuals + 2 * s.a + kept_kv + products + pre_activations) + s.beta_l * s.n_h;
    case Recompute::selective: return s.beta * (residuals + s.a + lent) + s.beta_l * s.n_h;
    case Recompute::full: return s.beta * (residuals + lent);
  }
  return 0;
}

/// Returns the bytes of the activation category of a rank whose tokens have all heads and rows: B·S_p·(L·saved + hβ for the final
/// residual + β_l for the head's log-sum-exp) + ids. `id_bytes`: bytes of ids and labels per token.
inline Count activation_bytes(const Setting& of, Count local_tokens, Count id_bytes) {
  const Symbols s(of);
  Count saved = 0;
  for (std::size_t layer = 0; layer < of.model.layers; ++layer) saved += saved_bytes_per_token(of, of.model.layer(layer));
  return s.B * local_tokens * (saved + s.h * s.beta + s.beta_l + id_bytes);
}

/// Returns the same for any rank of a layout: residuals of layers, the final residual, log-sum-exp and ids of the tokens between
/// sublayers, the rest of the heads and rows that the rank computes. Ulysses keeps q, k, v and log-sum-exps of its heads over
/// whole sequences.
inline Count activation_bytes(const Setting& of, const Layout& layout, int t, int p, Count id_bytes) {
  const Degrees n(layout);
  const Symbols all(of, n.dp);
  const Count rows = all.B * tokens_of(all.S, n.D, p);
  const Count between = n.sequence ? part_of(rows, n.T, t) : rows;
  const bool by_heads = n.D > 1 && !n.shares_weights() && n.exchange == SequenceExchange::ulysses;
  const Count seen = by_heads ? all.B * all.S : rows;
  Count inside = 0;  // of all layers
  Count residuals = 0;
  for (std::size_t layer = 0; layer < of.model.layers; ++layer) {
    const LayerSpec& spec = of.model.layer(layer);
    const Symbols s(layer_alone(of, spec), n.dp);
    const Heads queries = queries_of(s, n.T, t);
    const Count pre_activations = (s.matrices - 1) * part_of(s.f, n.T, t);
    const Heads computed =
        by_heads ? Heads{queries.first + begin_of(queries.count, n.D, p), part_of(queries.count, n.D, p)} : queries;
    if (s.recompute != Recompute::full) inside += rows * queries.count * s.d * s.beta + seen * computed.count * s.beta_l;
    if (s.lends || (s.own && s.recompute == Recompute::none)) inside += seen * 2 * read_by(s, computed).count * s.d * s.beta;
    if (s.recompute == Recompute::none) {
      inside += seen * computed.count * s.d * s.beta + rows * pre_activations * s.beta;
      if (spec.norms_queries_and_keys())
        inside += rows * (queries.count + (s.own ? read_by(s, queries).count : 0)) * s.d * s.beta;
      if (spec.norms_values && s.m == 2) inside += rows * read_by(s, queries).count * s.d * s.beta;
    }
    residuals += kept_residuals(spec);
  }
  return inside + residuals * between * all.h * all.beta + between * (all.h * all.beta + all.beta_l + id_bytes);
}

// --- a pipeline of P stages that are alike, with messages that take no time ---------------------------------------------------

/// Part of a whole.
struct Fraction {
  Count part;
  Count whole;
};
/// Returns how much of a step's time a stage is idle under gpipe and 1f1b, whatever a forward and a backward pass take:
/// (P − 1)/(M + P − 1).
inline Fraction bubble(Count P, Count M) { return {P - 1, M + P - 1}; }
/// Returns the bytes of residuals and their gradients that all ranks receive over the P − 1 boundaries in a step:
/// (P − 1)·B·S·h·(β + β_a), of all replicas, × T under plain tp.
inline Count over_boundaries(const Setting& of, const Layout& layout) {
  const Symbols s(of, 1);
  const Degrees n(layout);
  return (as_count(layout.degree(AxisKind::pp)) - 1) * of.micro_batches * s.B * s.S * s.h * (s.beta + s.beta_a) *
         (n.plain_tensor() ? as_count(n.T) : 1);
}
/// Returns of how many micro-batches a stage, counted from 0, holds activations at most under 1f1b; under gpipe these are all.
inline Count under_way(Count P, Count M, Count stage) { return std::min(M, P - stage); }

}  // namespace tsprun::detail::formulas
