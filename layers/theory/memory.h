// Exact memory of TSP by formula: what a layer saves for its backward pass, and which buffers exist while a sublayer is computed.
#pragma once

#include "layers/layout/setting.h"

#include <cstddef>
#include <cstdint>

namespace tsprun::detail::theory {

/// Returns the bytes that a layer saves for each local token, by recomputation mode: none β(2h + 2a + 2k + 2f) + β_l·n_h (f
/// instead of 2f if the MLP has no gate), selective β(2h + a) + β_l·n_h, full 2βh. Symbols as in docs/algorithms.md.
std::uint64_t saved_bytes_per_token(const Setting& setting);

/// Returns the bytes of a rank's activation category: B·S_p·(L·saved + hβ for the final residual + β_l for the head's
/// log-sum-exp) + ids. `id_bytes`: bytes of ids and labels per token.
std::uint64_t activation_bytes(const Setting& setting, std::size_t local_tokens, std::uint64_t id_bytes);

/// Bytes of the buffers that exist at once while one sublayer is computed, at the largest shard.
struct Transients {
  std::uint64_t weights = 0;           ///< weight shards
  std::uint64_t kv = 0;                ///< buckets of gathered K and V
  std::uint64_t weight_gradients = 0;  ///< gradient shards, in the type of sums
  std::uint64_t kv_gradients = 0;      ///< buckets of dK and dV over whole sequences, in the type of sums

  std::uint64_t total() const { return weights + kv + weight_gradients + kv_gradients; }
};

/// Returns the transients of one sublayer. `bucket_heads`: number of K/V heads that are gathered at a time. Forward: two weight
/// shards, two buckets of K/V. Backward: three weight shards, two gradient shards, two buckets of K/V and two of dK/dV. Step
/// tensors, which are proportional to B·S_p, aren't included.
Transients tsp_attention_forward(const Setting& setting, int ranks, std::size_t bucket_heads);
Transients tsp_attention_backward(const Setting& setting, int ranks, std::size_t bucket_heads);
Transients tsp_mlp_forward(const Setting& setting, int ranks);
Transients tsp_mlp_backward(const Setting& setting, int ranks);

}  // namespace tsprun::detail::theory
