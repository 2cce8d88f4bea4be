// Which part of the parameters each rank holds under every scheme, in elements; what a rank holds for good beside them follows
// from it (Table III). tsp cuts heads and rows over its ranks, tp over its own with copies of the K/V heads that several ranks
// read, zero3 cuts every sublayer's rows evenly, dp and sp hold copies. Ulysses saves q, k, v and log-sum-exps of some heads over
// whole sequences, the others of all heads over their tokens.
//
// The vocabulary is cut by rows over the ranks whose tokens differ; under plain tp over those of tp, and over tsp within them.
#pragma once

#include "core/memory/category.h"
#include "layers/theory/spread.h"

#include <cstdint>

namespace tsp::theory {

/// A rank's place among those of its replica.
struct Place {
  int t = 0;  ///< on tp
  int p = 0;  ///< on sp, tsp or zero3
};

/// Elements.
struct Held {
  std::uint64_t attention = 0;   ///< of all layers
  std::uint64_t mlp = 0;         ///< of all layers
  std::uint64_t vocabulary = 0;  ///< embedding, and head unless tied
  std::uint64_t norms = 0;       ///< all gains, biases, learned positions
  std::uint64_t total() const { return attention + mlp + vocabulary + norms; }
};

Held held(const ModelConfig& model, const Spread& spread, Place place);

/// Optimizer states a parameter: two, and the master copy where parameters have fewer bytes than sums.
std::uint64_t optimizer_states(const ElementBytes& bytes);

/// Tokens of all its sequences whose activations the rank keeps between sublayers: of its chunks, and with Megatron's sequence
/// parallelism its part of those.
std::uint64_t kept_rows(const Setting& setting, const Spread& spread, Place place);

/// What a rank holds for certain in a training step, exactly: parameters, gradients, optimizer and saved activations, `total` of
/// them. `id_bytes`: of ids and labels for one token.
CategoryBytes persistent(const Setting& setting, const Spread& spread, Place place, std::uint64_t id_bytes);

/// The rank that holds most.
Place fullest(const Setting& setting, const Spread& spread);

}  // namespace tsp::theory
