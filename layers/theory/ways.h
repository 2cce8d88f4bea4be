// Table of the axes of a layout, as theory sees them: the flows of a step. The row of an axis stands in ways.cpp, its functions
// in a file of layers/theory/ways/; the rest of theory asks these rows, or the layout.
#pragma once

#include "layers/theory/flows.h"
#include "layers/theory/paper.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tsprun::detail::theory {

/// The flows of all blocks of one replica's micro-batch, and the numbers that they follow from.
struct BlockFlows {
  const Setting& setting;  ///< of one micro-batch
  const Layout& layout;
  const ModelConfig& model;
  std::uint64_t T;  ///< ranks of tp
  std::uint64_t D;  ///< ranks with other tokens of the same sequences
  std::uint64_t L;  ///< layers
  std::uint64_t e;  ///< β
  std::uint64_t a;  ///< β_a
  std::vector<Flow> flows = {};

  /// Borrows both.
  BlockFlows(const Setting& micro_batch, const Layout& layout);

  /// Returns the K/V heads of a layer that the ranks of tp read, summed over them: m(T).
  std::uint64_t kv_read(const LayerSpec& layer) const;
  /// Returns the elements of a layer's W_K and W_V beyond the first copy.
  std::uint64_t copied(const LayerSpec& layer) const;
  /// Returns the sum of count(layer) over all layers.
  template <class Count>
  std::uint64_t sum(Count&& count) const {
    return model.specs.sum(0, L, count);
  }

  /// Adds a flow over an axis and returns it. `bytes` and `messages` are those of all layers.
  Flow& add(AxisKind axis, Purpose purpose, Pattern pattern, Phase phase, bool backward, bool hidden, std::uint64_t bytes,
            std::uint64_t messages) {
    flows.push_back({axis, false, purpose, pattern, phase, backward, hidden, bytes, messages});
    return flows.back();
  }
};

/// Row of an axis in the table of theory. Of the members that follow `axis`, an axis that cuts heads has `add_flows` alone, one
/// that cuts sequences none: flows.cpp counts the gradients that it sums.
struct AxisWay {
  AxisKind axis;
  bool shares_weights = false;  ///< every rank computes with the weights that all of them hold together, not those that it holds
  /// Adds what moves where the axis has several ranks: weights and their gradients, or the activations of slices.
  void (*add_flows)(BlockFlows& of) = nullptr;
  /// Functions that add K and V, dK and dV, by the axis's variant.
  std::span<void (*const)(BlockFlows& of)> add_kv = {};
  /// The paper's scheme of the axis alone, and beside one that cuts heads; none: the paper has no formulas for it.
  std::optional<paper::Scheme> paper_alone = {};
  std::optional<paper::Scheme> paper_with_tensor = {};
};
/// Returns the row of the axis that cuts the layout's tokens.
const AxisWay& tokens_way(const Layout& layout);
/// Returns the scheme whose formulas the paper has for this layout; none if it has none.
std::optional<paper::Scheme> paper_scheme(const Layout& layout);

/// Adds the flows of the blocks.
void add_block_flows(BlockFlows& of);

// --- the ways ----------------------------------------------------------------------------------------------------------------

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
