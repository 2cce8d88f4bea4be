// Lists what moves in one training step as flows: for what purpose, along which axis, in which pattern, and how many bytes
// all ranks together receive. They feed the model of time (step_time.h), and the paper's tables; what `plan` prints as traffic is
// counted (step_counts.h). Tests hold the two against each other.
//
// Source: the table "Exact traffic" in docs/algorithms.md (tests state it scheme by scheme). What the table leaves open is
// decided here: tp×tsp is TSP of each tensor rank's part, with its activations all-reduced over tp as under tp×sp; the vocabulary
// is cut as layouts.h says; gradients of replicated vocabulary rows are all-reduced and counted as `embedding` (and as `head` if
// weights aren't tied).
#pragma once

#include "layers/theory/layouts.h"

#include <cstdint>
#include <vector>

namespace tsprun::detail::theory {

/// Communication pattern of a flow, which decides which links it can use.
enum class Pattern : std::uint8_t {
  collective,  ///< broadcast, gather, scatter or reduction among all ranks of the axis
  ring,        ///< from neighbour to neighbour
  neighbours,  ///< from few ranks, most of them neighbours on both sides: the keys that a window shows
  all_to_all   ///< a different part from every rank to every other
};

/// Part of a pass that a flow belongs to, and behind whose computation it hides if it can. `pass`: the whole pass.
enum class Phase : std::uint8_t { attention, mlp, head, pass };

/// One kind of transfer in a training step, summed over layers and ranks.
struct Flow {
  AxisKind axis;      ///< the axis along which it moves
  bool with_tensors;  ///< it also spans the ranks of tp, thus all ranks of a replica
  Purpose purpose;    ///< the purpose that traffic reports count it under
  Pattern pattern;
  Phase phase;
  bool backward;           ///< true: in the backward pass; false: in the forward pass
  bool hidden;             ///< the schedule overlaps it with the phase's computation
  std::uint64_t bytes;     ///< bytes received by all ranks of the job together in the whole step
  std::uint64_t messages;  ///< messages that follow one another on a rank in the whole step
  /// Sums over ranks that have copies: where data ranks share weights (--dp zero3), each sums its part alone, together with
  /// those of dp that have copies of it.
  bool by_part = false;
  bool once = false;  ///< moves once a step, with or after the last micro-batch; false: with each
};

/// Returns the flows of one training step whose ids are uniformly distributed. The layout must be possible (why_impossible()).
std::vector<Flow> step_flows(const Setting& setting, const Layout& layout);

/// Returns the sum of the flows' bytes by purpose, over all ranks.
Traffic sum(const std::vector<Flow>& flows);
/// Returns the bytes that all ranks receive in one block, forward and backward. Excludes `other`, embedding and head.
Traffic mesh_block(const MeshSetting& of);

}  // namespace tsprun::detail::theory
