// Table of the ways to compute blocks (TSP, ZeRO-3, …), as theory sees them: the part of the weights that a rank holds, and what
// a step moves. A way is a file in layers/theory/ways/ and a row in ways.cpp; the rest of theory asks these rows, or the layout.
#pragma once

#include "layers/theory/flows.h"

#include <cstdint>
#include <vector>

namespace tsprun::detail::theory {

/// The flows of all blocks of one replica, and the numbers that they follow from.
struct BlockFlows {
  const Setting& setting;  ///< of one replica
  const Layout& layout;
  const ModelConfig& model;
  std::uint64_t T;        ///< ranks of tp
  std::uint64_t D;        ///< ranks with other tokens of the same sequences
  std::uint64_t L;        ///< layers
  std::uint64_t e;        ///< β
  std::uint64_t a;        ///< β_a
  std::uint64_t kv_read;  ///< K/V heads that the ranks of tp read, summed over them: m(T)
  std::uint64_t copied;   ///< elements of W_K and W_V beyond the first copy
  std::vector<Flow> flows = {};

  /// Borrows both; `replica` is the setting of one replica.
  BlockFlows(const Setting& replica, const Layout& layout);

  /// Adds a flow over an axis. `bytes` and `messages` are those of all layers.
  void add(AxisKind axis, Purpose purpose, Pattern pattern, Phase phase, bool backward, bool hidden, std::uint64_t bytes,
           std::uint64_t messages) {
    flows.push_back({axis, false, purpose, pattern, phase, backward, hidden, bytes, messages});
  }
};

/// Elements of one block's matrices.
struct BlockElements {
  std::uint64_t attention;
  std::uint64_t mlp;
};

/// Placement of a block's weights on the axis that cuts tokens.
struct WeightsWay {
  bool shared;  ///< every rank computes with the weights that all of them hold together; false: with those that it holds
  /// Returns what rank `part` of `parts` holds of a block of the model, which has `slice` of the heads and rows.
  BlockElements (*held)(const ModelConfig& model, const BlockSlice& slice, int part, int parts);
  /// Adds the weights and their gradients, where the axis has several ranks.
  void (*add_flows)(BlockFlows& of);
};
/// Returns the row of the layout's scheme.
const WeightsWay& weights_way(const Layout& layout);

/// Returns the flows of the blocks of one replica, whose setting is `replica`.
std::vector<Flow> block_flows(const Setting& replica, const Layout& layout);

// --- the ways ----------------------------------------------------------------------------------------------------------------

/// Returns the elements of a slice of a block.
BlockElements elements_of(const ModelConfig& model, const BlockSlice& slice);

BlockElements held_by_tsp(const ModelConfig& model, const BlockSlice& slice, int part, int parts);
BlockElements held_by_zero3(const ModelConfig& model, const BlockSlice& slice, int part, int parts);
BlockElements held_by_sp(const ModelConfig& model, const BlockSlice& slice, int part, int parts);
void add_tsp(BlockFlows& of);
void add_zero3(BlockFlows& of);
void add_sp(BlockFlows& of);
/// Adds K and V, dK and dV: gathered, sent round the ring, or with Q, O and dQ exchanged for heads.
void add_gathered_kv(BlockFlows& of);
void add_ring_kv(BlockFlows& of);
void add_exchanged_heads(BlockFlows& of);
/// Adds the activations that the ranks of tp exchange, and the gradients of the K/V heads of which they have copies.
void add_tp(BlockFlows& of);

}  // namespace tsprun::detail::theory
