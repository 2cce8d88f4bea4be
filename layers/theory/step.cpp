// Bytes received by one rank under TSP beyond the blocks: embedding, head, gains and biases.
#include "layers/theory/step.h"

#include "layers/layout/shards.h"
#include "layers/layout/zigzag.h"

#include <algorithm>

namespace tsprun::detail::theory {

namespace {

/// Returns the rank whose sum `rank` starts on the ring, the only sum that `rank` doesn't receive.
int started_by(int rank, int ranks) { return (rank + ranks - 1) % ranks; }

Traffic head_of_rank(const Setting& setting, int ranks, int rank, SumPath path) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const std::uint64_t h = setting.model.hidden;
  Traffic traffic;
  if (head_plan(setting) == HeadPlan::rotate_weights) {
    const Chunks rows = Chunks::balanced(ranks, setting.model.vocabulary);
    const std::uint64_t weights = (setting.model.vocabulary - rows.count(rank)) * h;
    const std::uint64_t sums = (setting.model.vocabulary - rows.count(started_by(rank, ranks))) * h;
    traffic.forward[Purpose::head] = weights * element;
    traffic.backward[Purpose::head] = weights * element + sums * accumulated;
    return traffic;
  }
  const Zigzag zigzag(setting.sequence, ranks);
  const auto tokens = [&](int of) { return setting.batch * zigzag.tokens(of); };
  const std::uint64_t others = setting.tokens() - tokens(rank);
  traffic.forward[Purpose::head] = others * (h * element + lse) + hops(ranks) * tokens(rank) * lse;
  const std::uint64_t scattered =
      path == SumPath::direct ? hops(ranks) * tokens(rank) : setting.tokens() - tokens(started_by(rank, ranks));
  traffic.backward[Purpose::head] = scattered * h * accumulated;
  return traffic;
}

}  // namespace

std::vector<RemoteRows> remote_rows(std::span<const std::int32_t> ids, const Setting& setting, int ranks) {
  const Zigzag zigzag(setting.sequence, ranks);
  const Chunks cut = Chunks::balanced(ranks, setting.model.vocabulary);
  std::vector<RemoteRows> rows(static_cast<std::size_t>(ranks));
  for (std::size_t token = 0; token < ids.size(); ++token) {
    const int reader = zigzag.owner(token % setting.sequence).rank;
    int owner = 0;
    while (owner + 1 < ranks && static_cast<std::size_t>(ids[token]) >= cut.offset(owner) + cut.count(owner)) ++owner;
    if (owner == reader) continue;
    ++rows[static_cast<std::size_t>(reader)].needed;
    ++rows[static_cast<std::size_t>(owner)].wanted;
  }
  return rows;
}

std::uint64_t remote_rows_of_all(std::span<const RemoteRows> rows) {
  std::uint64_t sum = 0;
  for (const RemoteRows& each : rows) sum += each.needed;
  return sum;
}

// An all-reduce is a reduction chunk by chunk, followed by a gather.
std::uint64_t all_reduced_of_rank(int ranks, int rank, SumPath path, std::uint64_t all) {
  const Chunks chunks = Chunks::balanced(ranks, all);
  const std::uint64_t reduced =
      path == SumPath::direct ? hops(ranks) * chunks.count(rank) : all - chunks.count(started_by(rank, ranks));
  return reduced + all - chunks.count(rank);
}

Traffic tsp_block_of_rank(const Setting& setting, int ranks, int rank, SumPath attention) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const TspShards shards(setting.model, ranks);
  const Zigzag zigzag(setting.sequence, ranks);
  // On the ring, a rank receives every sum but the one that it starts.
  const int starts = started_by(rank, ranks);
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

Traffic tsp_step_of_rank(const Setting& setting, int ranks, int rank, SumPath path, const RemoteRows& rows, bool backward) {
  Traffic step = tsp_block_of_rank(setting, ranks, rank, path).times(setting.model.layers);
  step += head_of_rank(setting, ranks, rank, path);
  step.forward[Purpose::embedding] += rows.needed * setting.model.hidden * setting.bytes.element;
  step.backward[Purpose::embedding] += rows.wanted * setting.model.hidden * setting.bytes.accumulated;
  // There are two sums: the vectors of h elements, and the biases of projections.
  const std::uint64_t biases = setting.model.projection_biases();
  for (const std::uint64_t elements : {setting.model.replicated_parameters() - biases, biases})
    step.backward[Purpose::other] += all_reduced_of_rank(ranks, rank, path, elements) * setting.bytes.accumulated;
  if (!backward) step.backward = {};
  return step;
}

}  // namespace tsprun::detail::theory
