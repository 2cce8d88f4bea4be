// docs/algorithms.md as closed formulas: the rows of the table "Exact traffic" for one block, in integers, summed over the ranks
// of the axes: what the flows of layers/theory and real ranks are held against. The table's m(D) and c(D) are counted head by
// head, so the formulas also hold where n_kv and D don't divide each other.
#pragma once

#include "core/collectives/chunks.h"
#include "layers/layout/heads.h"
#include "layers/layout/zigzag.h"
#include "layers/theory/flows.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail::theory {

/// Returns the rank that has a position of a sequence.
inline int owner_of(const Zigzag& cut, std::size_t position) {
  int chunk = 0;
  while (cut.chunk_end(chunk) <= position) ++chunk;
  return chunk < cut.ranks() ? chunk : 2 * cut.ranks() - 1 - chunk;
}

/// Returns the sum of a step's flows: the table's rows for every layout, but for the smallest of `other`.
inline Traffic step_traffic(const Setting& setting, const Layout& layout) { return sum(step_flows(setting, layout)); }

/// Returns the traffic of several alike.
inline Traffic operator*(Traffic one, std::uint64_t several) {
  for (PurposeBytes* pass : {&one.forward, &one.backward}) {
    for (int i = 0; i < kPurposes; ++i) (*pass)[static_cast<Purpose>(i)] *= several;
  }
  return one;
}

/// Returns the elements of W_K and W_V that are copies: those of K/V heads on more than one rank, counted once for each copy
/// beyond the first.
inline std::uint64_t copied_kv_parameters(const Setting& setting, std::size_t heads_read_by_all) {
  const ModelConfig& model = setting.model;
  return 2 * model.hidden * model.head_dim * (heads_read_by_all - model.kv_heads);
}

inline HeadCut head_cut(const Setting& setting, int ranks) { return {setting.model.query_heads, setting.model.kv_heads, ranks}; }

/// Returns the traffic of K/V gathered forward and backward, and of dK/dV scattered to their tokens' ranks.
inline Traffic kv_exchange(const Setting& setting, int ranks) {
  const auto& [element, accumulated, lse] = setting.bytes;
  Traffic traffic;
  traffic.forward[Purpose::kv] = setting.kv_elements() * element * hops(ranks);
  traffic.backward[Purpose::kv] = setting.kv_elements() * (element + accumulated) * hops(ranks);
  return traffic;
}

/// Returns the bytes of an all-reduce of `elements` gradients: 2·N·ρ per rank.
inline std::uint64_t all_reduced(const Setting& setting, std::uint64_t elements, int ranks) {
  return 2 * elements * setting.bytes.accumulated * hops(ranks);
}

/// Returns TSP's traffic: weights are broadcast (attention) or rotated (MLP), their gradients summed to their owners, K/V
/// gathered and dK/dV scattered. No recomputation mode adds to it.
inline Traffic tsp_block(const Setting& setting, int ranks) {
  Traffic traffic = kv_exchange(setting, ranks);
  const std::uint64_t weights = setting.block_parameters() * hops(ranks);
  traffic.forward[Purpose::weights] = weights * setting.bytes.element;
  traffic.backward[Purpose::weights] = weights * setting.bytes.element;
  traffic.backward[Purpose::gradients] = weights * setting.bytes.accumulated;
  return traffic;
}

/// Returns the traffic of ZeRO-3 and `--sp gather` over the same ranks; equal to TSP's.
inline Traffic zero3_block(const Setting& setting, int ranks) { return tsp_block(setting, ranks); }

/// Returns plain tensor parallelism's traffic: four all-reduces of [B, S, h], two in each pass, and the sums of the gradients of
/// K/V heads that are copied.
inline Traffic tp_block(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.forward[Purpose::activations] = 4 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  traffic.backward[Purpose::activations] = traffic.forward[Purpose::activations];
  const std::size_t read = head_cut(setting, ranks).kv_heads_read_by_all();
  traffic.backward[Purpose::gradients] = 2 * copied_kv_parameters(setting, read) * setting.bytes.accumulated;
  return traffic;
}

/// Returns the traffic of Megatron's sequence parallelism. In backward the gathered inputs are gathered once more, unless they
/// were kept.
inline Traffic tp_sequence_block(const Setting& setting, int ranks, bool gathered_inputs_kept) {
  Traffic traffic = tp_block(setting, ranks);
  if (!gathered_inputs_kept) {
    traffic.backward[Purpose::activations] += 2 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  }
  return traffic;
}

/// Returns the traffic of sequence parallelism that gathers K and V (`--sp gather`).
inline Traffic sp_gather_block(const Setting& setting, int ranks) {
  Traffic traffic = kv_exchange(setting, ranks);
  traffic.backward[Purpose::gradients] = all_reduced(setting, setting.block_parameters(), ranks);
  return traffic;
}

/// Returns the traffic of ring attention (`--sp ring`). Full recomputation adds one round of K and V.
inline Traffic sp_ring_block(const Setting& setting, int ranks) {
  Traffic traffic = sp_gather_block(setting, ranks);
  // Computing O again needs all of K and V before backward's own round begins.
  if (setting.recompute == Recompute::full) traffic.backward[Purpose::kv] += traffic.forward[Purpose::kv];
  return traffic;
}

/// Returns the traffic of Ulysses (`--sp ulysses`). If several ranks read a K/V head, its gradients are summed, so dK and dV
/// travel with β_a bytes an element. Δ of the backward pass isn't included; it is counted as `other`.
inline Traffic sp_ulysses_block(const Setting& setting, int ranks) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const HeadCut heads = head_cut(setting, ranks);
  const Zigzag zigzag(setting.sequence, ranks);
  const std::size_t read = heads.kv_heads_read_by_all();
  // Elements that change ranks when Q (or O) and K (or V) go from token shards to head shards, or back.
  std::uint64_t q = 0;
  std::uint64_t k = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::uint64_t tokens = setting.batch * zigzag.tokens(rank) * setting.model.head_dim;
    q += tokens * (setting.model.query_heads - heads.query_heads(rank).count);
    k += tokens * (read - heads.kv_heads_read(rank).count);
  }
  const bool summed = read > setting.model.kv_heads;
  Traffic traffic;
  traffic.forward[Purpose::activations] = (2 * q + 2 * k) * element;
  traffic.backward[Purpose::activations] = 2 * q * element + 2 * k * (summed ? accumulated : element);
  if (setting.recompute == Recompute::selective) traffic.backward[Purpose::activations] += (q + 2 * k) * element;
  if (setting.recompute == Recompute::full) traffic.backward[Purpose::activations] += (2 * q + 2 * k) * element;
  traffic.backward[Purpose::gradients] = all_reduced(setting, setting.block_parameters(), ranks);
  return traffic;
}

/// Returns the traffic of tensor parallelism over T ranks with an all-gather of K/V over Σ, summed over all T·Σ ranks.
inline Traffic tp_sp_block(const Setting& setting, int tensor_ranks, int sequence_ranks) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const std::size_t read = head_cut(setting, tensor_ranks).kv_heads_read_by_all();
  const std::uint64_t kv = 2 * setting.tokens() * setting.model.head_dim * read * hops(sequence_ranks);
  const std::uint64_t copied = copied_kv_parameters(setting, read);
  Traffic traffic;
  traffic.forward[Purpose::kv] = kv * element;
  traffic.backward[Purpose::kv] = kv * (element + accumulated);
  traffic.forward[Purpose::activations] = 4 * setting.hidden_elements() * element * hops(tensor_ranks);
  traffic.backward[Purpose::activations] = traffic.forward[Purpose::activations];
  // The copies' gradients are summed within each tensor group, then all gradients over the sequence axis.
  traffic.backward[Purpose::gradients] = all_reduced(setting, setting.block_parameters() + copied, sequence_ranks) +
                                         2 * copied * accumulated * static_cast<std::uint64_t>(sequence_ranks);
  return traffic;
}

/// Returns data parallelism's traffic: gradients of whole blocks, all-reduced. Independent of the batch.
inline Traffic dp_block(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.backward[Purpose::gradients] = all_reduced(setting, setting.block_parameters(), ranks);
  return traffic;
}

/// Returns the traffic of all-reducing one norm gain's gradient.
inline Traffic norm_gain(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.backward[Purpose::other] = all_reduced(setting, setting.model.hidden, ranks);
  return traffic;
}

/// Returns the embedding's traffic. `remote_rows` is R, the number of tokens whose embedding row lives on another rank, as
/// counted from the ids.
inline Traffic embedding(const Setting& setting, std::uint64_t remote_rows) {
  Traffic traffic;
  traffic.forward[Purpose::embedding] = remote_rows * setting.model.hidden * setting.bytes.element;
  traffic.backward[Purpose::embedding] = remote_rows * setting.model.hidden * setting.bytes.accumulated;
  return traffic;
}

/// Returns R for ids [B, S] in natural order, in one replica: a holder of tokens has a balanced part of the vocabulary's rows.
inline std::uint64_t remote_rows(std::span<const std::int32_t> ids, const Setting& setting, const Layout& layout) {
  const int D = layout.sequence();
  const int T = layout.slices_tokens() ? layout.tensor() : 1;
  const Zigzag zigzag(setting.sequence, D);
  std::vector<std::vector<std::size_t>> of_rank(static_cast<std::size_t>(D));  // in natural order
  for (std::size_t token = 0; token < ids.size(); ++token) {
    const int rank = owner_of(zigzag, token % setting.sequence);
    of_rank[static_cast<std::size_t>(rank)].push_back(static_cast<std::size_t>(ids[token]));
  }
  const Chunks rows = Chunks::balanced(D * T, setting.model.vocabulary);
  std::uint64_t remote = 0;
  for (int holder = 0; holder < D * T; ++holder) {
    const std::vector<std::size_t>& all = of_rank[static_cast<std::size_t>(holder / T)];
    const Chunks slices = Chunks::balanced(T, all.size());
    for (const std::size_t id : std::span(all).subspan(slices.offset(holder % T), slices.count(holder % T)))
      remote += id < rows.offset(holder) || id >= rows.offset(holder) + rows.count(holder);
  }
  return remote;
}

/// Returns the traffic of a whole training step under TSP: blocks, norm gains (with biases and learned positions, if there are
/// any), embedding and head.
inline Traffic tsp_step(const Setting& setting, int ranks, std::uint64_t remote_rows) {
  Traffic step = tsp_block(setting, ranks) * setting.model.layers;
  step.backward[Purpose::other] += all_reduced(setting, setting.model.replicated_parameters(), ranks);
  step += embedding(setting, remote_rows);
  step += head(setting, ranks, head_plan(setting));
  return step;
}

/// Returns the bytes of a rank's activation category: B·S_p·(L·saved + hβ for the final residual + β_l for the head's
/// log-sum-exp) + ids. `id_bytes`: bytes of ids and labels per token.
inline std::uint64_t activation_bytes(const Setting& setting, std::size_t local_tokens, std::uint64_t id_bytes) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const std::uint64_t token =
      setting.model.layers * saved_bytes_per_token(setting) + setting.model.hidden * element + lse + id_bytes;
  return setting.batch * local_tokens * token;
}

}  // namespace tsprun::detail::theory
