// Exact memory of TSP on paper: what a layer saves for its backward pass, and the transients of a layer's visit.
#pragma once

#include "layers/theory/setting.h"

#include <cstddef>
#include <cstdint>

namespace tsprun::theory {

/// Bytes that a layer saves for each local token: none β(2h+2a+2k+2f) + β_l·n_h, selective β(2h+a) + β_l·n_h, full 2βh.
std::uint64_t saved_bytes_per_token(const Setting& setting);

/// The activation category of a rank: B·S_p·(L·saved + hβ for the final residual + β_l for the head's log-sum-exp) + ids.
/// `id_bytes`: of ids and labels for one token.
std::uint64_t activation_bytes(const Setting& setting, std::size_t local_tokens, std::uint64_t id_bytes);

/// Buffers that are in flight during the visit of one sublayer, at the largest shard.
struct Transients {
  std::uint64_t weights = 0;           ///< weight shards
  std::uint64_t kv = 0;                ///< gathered K/V buckets
  std::uint64_t weight_gradients = 0;  ///< gradient shards in the type of sums
  std::uint64_t kv_gradients = 0;      ///< dK/dV buckets of full length in the type of sums

  std::uint64_t total() const { return weights + kv + weight_gradients + kv_gradients; }
};

/// `bucket_heads`: K/V heads that are gathered at a time. Forward: two weight shards, two buckets of K/V. Backward: three weight
/// shards, two gradient shards, two buckets of K/V and two of dK/dV. Step tensors, which are proportional to B·S_p, come on top.
Transients tsp_attention_forward(const Setting& setting, int ranks, std::size_t bucket_heads);
Transients tsp_attention_backward(const Setting& setting, int ranks, std::size_t bucket_heads);
Transients tsp_mlp_forward(const Setting& setting, int ranks);
Transients tsp_mlp_backward(const Setting& setting, int ranks);

}  // namespace tsprun::theory
