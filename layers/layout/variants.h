// Variants of the axes tp and sp: how their ranks exchange activations.
#pragma once

#include <cstdint>

namespace tsprun {

/// Ways in which the ranks of the tensor axis exchange activations between sublayers (`--tp`).
enum class TensorExchange : std::uint8_t {
  plain,    ///< each rank keeps all tokens: one all-reduce per sublayer and direction
  sequence  ///< Megatron's sequence parallelism: each has a part; all-gather before, reduce-scatter after a sublayer
};

/// Ways of exchanging K and V over the sequence axis (`--sp`).
enum class SequenceExchange : std::uint8_t {
  gather,  ///< each rank gathers all K and V (context parallelism)
  ring,    ///< K and V travel round a ring (ring attention)
  ulysses  ///< an all_to_all exchanges tokens for heads (DeepSpeed-Ulysses)
};

}  // namespace tsprun
