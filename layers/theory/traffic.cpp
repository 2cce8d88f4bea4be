// The rows of the table "Exact traffic" (docs/algorithms.md) as integers, summed over ranks.
#include "layers/theory/traffic.h"

#include "layers/layout/heads.h"
#include "layers/layout/shards.h"
#include "layers/layout/zigzag.h"

#include <limits>
#include <numeric>

namespace tsprun::detail::theory {

namespace {

/// Returns the elements of W_K and W_V that are copies: those of K/V heads on more than one rank, counted once for each copy
/// beyond the first.
std::uint64_t copied_kv_parameters(const Setting& setting, std::size_t heads_read_by_all) {
  const ModelConfig& model = setting.model;
  return 2 * model.hidden * model.head_dim * (heads_read_by_all - model.kv_heads);
}

HeadCut head_cut(const Setting& setting, int ranks) { return {setting.model.query_heads, setting.model.kv_heads, ranks}; }

/// Returns the traffic of K/V gathered forward and backward, and of dK/dV scattered to their tokens' ranks.
Traffic kv_exchange(const Setting& setting, int ranks) {
  const auto& [element, accumulated, lse] = setting.bytes;
  Traffic traffic;
  traffic.forward[Purpose::kv] = setting.kv_elements() * element * hops(ranks);
  traffic.backward[Purpose::kv] = setting.kv_elements() * (element + accumulated) * hops(ranks);
  return traffic;
}

/// Returns the bytes of an all-reduce of `elements` gradients: 2·N·ρ per rank.
std::uint64_t all_reduced(const Setting& setting, std::uint64_t elements, int ranks) {
  return 2 * elements * setting.bytes.accumulated * hops(ranks);
}

}  // namespace

std::uint64_t PurposeBytes::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), std::uint64_t{0}); }

Traffic& Traffic::operator+=(const Traffic& other) {
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    forward[purpose] += other.forward[purpose];
    backward[purpose] += other.backward[purpose];
  }
  return *this;
}

Traffic Traffic::times(std::uint64_t factor) const {
  Traffic result;
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    result.forward[purpose] = forward[purpose] * factor;
    result.backward[purpose] = backward[purpose] * factor;
  }
  return result;
}

Traffic tsp_block(const Setting& setting, int ranks) {
  Traffic traffic = kv_exchange(setting, ranks);
  const std::uint64_t weights = setting.block_parameters() * hops(ranks);
  traffic.forward[Purpose::weights] = weights * setting.bytes.element;
  traffic.backward[Purpose::weights] = weights * setting.bytes.element;
  traffic.backward[Purpose::gradients] = weights * setting.bytes.accumulated;
  return traffic;
}

// Same bytes as TSP, which differs in when weights move and how much of them is in memory at a time.
Traffic zero3_block(const Setting& setting, int ranks) { return tsp_block(setting, ranks); }

Traffic tp_block(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.forward[Purpose::activations] = 4 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  traffic.backward[Purpose::activations] = traffic.forward[Purpose::activations];
  const std::size_t read = head_cut(setting, ranks).kv_heads_read_by_all();
  traffic.backward[Purpose::gradients] = 2 * copied_kv_parameters(setting, read) * setting.bytes.accumulated;
  return traffic;
}

Traffic tp_sequence_block(const Setting& setting, int ranks, bool gathered_inputs_kept) {
  Traffic traffic = tp_block(setting, ranks);
  if (!gathered_inputs_kept) {
    traffic.backward[Purpose::activations] += 2 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  }
  return traffic;
}

Traffic sp_gather_block(const Setting& setting, int ranks) {
  Traffic traffic = kv_exchange(setting, ranks);
  traffic.backward[Purpose::gradients] = all_reduced(setting, setting.block_parameters(), ranks);
  return traffic;
}

Traffic sp_ring_block(const Setting& setting, int ranks) {
  Traffic traffic = sp_gather_block(setting, ranks);
  // Computing O again needs all of K and V before backward's own round begins.
  if (setting.recompute == Recompute::full) traffic.backward[Purpose::kv] += traffic.forward[Purpose::kv];
  return traffic;
}

Traffic sp_ulysses_block(const Setting& setting, int ranks) {
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

Traffic tp_sp_block(const Setting& setting, int tensor_ranks, int sequence_ranks) {
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

Traffic dp_block(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.backward[Purpose::gradients] = all_reduced(setting, setting.block_parameters(), ranks);
  return traffic;
}

Traffic norm_gain(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.backward[Purpose::other] = all_reduced(setting, setting.model.hidden, ranks);
  return traffic;
}

Traffic embedding(const Setting& setting, std::uint64_t remote_rows) {
  Traffic traffic;
  traffic.forward[Purpose::embedding] = remote_rows * setting.model.hidden * setting.bytes.element;
  traffic.backward[Purpose::embedding] = remote_rows * setting.model.hidden * setting.bytes.accumulated;
  return traffic;
}

Traffic head(const Setting& setting, int ranks, HeadPlan plan, bool gathered_kept) {
  const auto& [element, accumulated, lse] = setting.bytes;
  Traffic traffic;
  if (plan == HeadPlan::rotate_weights) {
    const std::uint64_t weights = setting.model.vocabulary * setting.model.hidden * hops(ranks);
    traffic.forward[Purpose::head] = weights * element;
    traffic.backward[Purpose::head] = weights * (element + accumulated);
  } else {
    const std::uint64_t x = setting.hidden_elements() * hops(ranks);
    traffic.forward[Purpose::head] = x * element + setting.tokens() * 2 * lse * hops(ranks);
    traffic.backward[Purpose::head] = x * ((gathered_kept ? 0 : element) + accumulated);
  }
  return traffic;
}

Traffic tp_embedding(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.forward[Purpose::embedding] = 2 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  return traffic;
}

Traffic tp_head(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.forward[Purpose::head] = 2 * setting.tokens() * setting.bytes.lse * hops(ranks);
  traffic.backward[Purpose::head] = 2 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  return traffic;
}

Traffic tsp_step(const Setting& setting, int ranks, std::uint64_t remote_rows) {
  Traffic step = tsp_block(setting, ranks).times(setting.model.layers);
  step.backward[Purpose::other] += all_reduced(setting, setting.model.replicated_parameters(), ranks);
  step += embedding(setting, remote_rows);
  step += head(setting, ranks, head_plan(setting));
  return step;
}

Traffic tsp_block_of_rank(const Setting& setting, int ranks, int rank, SumPath attention) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const TspShards shards(setting.model, ranks);
  const Zigzag zigzag(setting.sequence, ranks);
  // A sum for rank c starts at rank c+1: on the ring, a rank receives every sum but the one that it starts.
  const int starts = (rank + ranks - 1) % ranks;
  const auto summed = [&](std::uint64_t whole, std::uint64_t own, std::uint64_t started, SumPath path) {
    return path == SumPath::direct ? own * hops(ranks) : whole - started;
  };

  const std::uint64_t mlp = setting.mlp_parameters();
  const std::uint64_t weights = setting.block_parameters() - shards.attention(rank) - shards.mlp(rank);
  const std::uint64_t token = 2 * setting.batch * setting.model.kv_width();
  const std::uint64_t kv = token * (setting.sequence - zigzag.tokens(rank)) * element;

  Traffic traffic;
  traffic.forward[Purpose::weights] = traffic.backward[Purpose::weights] = weights * element;
  traffic.forward[Purpose::kv] = kv;
  traffic.backward[Purpose::kv] =
      kv + token * summed(setting.sequence, zigzag.tokens(rank), zigzag.tokens(starts), attention) * accumulated;
  traffic.backward[Purpose::gradients] =
      accumulated * (summed(setting.attention_parameters(), shards.attention(rank), shards.attention(starts), attention) +
                     summed(mlp, shards.mlp(rank), shards.mlp(starts), SumPath::ring));
  return traffic;
}

double tsp_tp_break_even(const Setting& setting, bool with_backward) {
  const auto beta = static_cast<double>(setting.bytes.element);
  const auto h = static_cast<double>(setting.model.hidden);
  // Bytes moved for a weight and for a K/V element under TSP, divided by ρ. TP moves 4h elements per token and pass.
  const double moved = with_backward ? 2 * beta + static_cast<double>(setting.bytes.accumulated) : beta;
  const double per_token = 4 * h * beta * (with_backward ? 2 : 1) - 2 * static_cast<double>(setting.model.kv_width()) * moved;
  if (per_token <= 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(setting.block_parameters()) * moved / per_token;
}

}  // namespace tsprun::detail::theory
