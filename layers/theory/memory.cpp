// Memory of TSP by formula; sizes of shards come from TspShards.
#include "layers/theory/memory.h"

#include "layers/layout/shards.h"

#include <algorithm>

namespace tsprun::detail::theory {

namespace {

constexpr std::uint64_t kForwardShards = 2;
constexpr std::uint64_t kBackwardShards = 3;
constexpr std::uint64_t kGradientShards = 2;
constexpr std::uint64_t kBuckets = 2;

std::uint64_t largest_attention_shard(const Setting& setting, int ranks) {
  const TspShards shards(setting.model, ranks);
  std::uint64_t largest = 0;
  for (int rank = 0; rank < ranks; ++rank) largest = std::max(largest, shards.attention(rank));
  return largest;
}

/// Returns the elements of K and V of `heads` heads over whole sequences.
std::uint64_t bucket_elements(const Setting& setting, std::size_t heads) {
  return 2 * setting.tokens() * heads * setting.model.head_dim;
}

}  // namespace

std::uint64_t saved_bytes_per_token(const Setting& setting) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const ModelConfig& model = setting.model;
  const std::uint64_t inputs = 2 * model.hidden;
  switch (setting.recompute) {
    case Recompute::none:
      return element * (inputs + 2 * model.query_width() + 2 * model.kv_width() + model.mlp_inputs() * model.intermediate) +
             lse * model.query_heads;
    case Recompute::selective: return element * (inputs + model.query_width()) + lse * model.query_heads;
    case Recompute::full: return element * inputs;
  }
  return 0;
}

std::uint64_t activation_bytes(const Setting& setting, std::size_t local_tokens, std::uint64_t id_bytes) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const std::uint64_t token =
      setting.model.layers * saved_bytes_per_token(setting) + setting.model.hidden * element + lse + id_bytes;
  return setting.batch * local_tokens * token;
}

Transients tsp_attention_forward(const Setting& setting, int ranks, std::size_t bucket_heads) {
  Transients result;
  result.weights = kForwardShards * largest_attention_shard(setting, ranks) * setting.bytes.element;
  result.kv = kBuckets * bucket_elements(setting, bucket_heads) * setting.bytes.element;
  return result;
}

Transients tsp_attention_backward(const Setting& setting, int ranks, std::size_t bucket_heads) {
  const std::uint64_t shard = largest_attention_shard(setting, ranks);
  const std::uint64_t bucket = bucket_elements(setting, bucket_heads);
  Transients result;
  result.weights = kBackwardShards * shard * setting.bytes.element;
  result.kv = kBuckets * bucket * setting.bytes.element;
  result.weight_gradients = kGradientShards * shard * setting.bytes.accumulated;
  result.kv_gradients = kBuckets * bucket * setting.bytes.accumulated;
  return result;
}

Transients tsp_mlp_forward(const Setting& setting, int ranks) {
  Transients result;
  result.weights = kForwardShards * TspShards(setting.model, ranks).mlp(0) * setting.bytes.element;
  return result;
}

Transients tsp_mlp_backward(const Setting& setting, int ranks) {
  const std::uint64_t shard = TspShards(setting.model, ranks).mlp(0);
  Transients result;
  result.weights = kBackwardShards * shard * setting.bytes.element;
  result.weight_gradients = kGradientShards * shard * setting.bytes.accumulated;
  return result;
}

}  // namespace tsprun::detail::theory
