// Everything that moves in one training step, as a list: what for, along which axis, in which shape, how many bytes are received
// by all ranks together. Sums of it are the exact traffic of a layout; its parts are what a model of time is made of.
//
// Source: the per-layer table of exact traffic (traffic.h states the same per scheme). What that table leaves open is decided
// here: tp×tsp is TSP of each tensor rank's part, its activations all-reduced over tp as under tp×sp; the vocabulary lies as
// layouts.h says, and copies of its rows have their gradients all-reduced, counted as `embedding` (of tied ones all) and `head`.
#pragma once

#include "layers/theory/layouts.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tsprun::theory {

/// The shape of an exchange: it decides which links it can use.
enum class Pattern : std::uint8_t {
  collective,  ///< broadcast, gather, scatter or reduction among all ranks of the axis
  ring,        ///< from neighbour to neighbour
  all_to_all   ///< another part to every rank
};

/// The part of a pass that an exchange belongs to, and hides behind if it can.
enum class Phase : std::uint8_t { attention, mlp, head, pass };

struct Flow {
  AxisKind axis;
  bool with_tensors;  ///< over the ranks of tp, too, so over all ranks of a replica
  Purpose purpose;
  Pattern pattern;
  Phase phase;
  bool backward;
  bool hidden;             ///< the schedule lets computation of the phase go on meanwhile
  std::uint64_t bytes;     ///< received by all ranks of the job in the whole step
  std::uint64_t messages;  ///< that follow one another on a rank, in the whole step
};

/// `remote_rows`: tokens of all sequences whose embedding row lives on another rank, counted from the ids; without it, as if
/// ids were uniform. Only for spreads that are possible.
std::vector<Flow> step_flows(const Setting& setting, const Spread& spread, std::optional<std::uint64_t> remote_rows = {});

/// Their sum by purpose, over all ranks.
Traffic sum(const std::vector<Flow>& flows);
/// Exact traffic of a step under any scheme, over all ranks.
Traffic step_traffic(const Setting& setting, const Spread& spread, std::optional<std::uint64_t> remote_rows = {});

/// What all ranks of a run receive: in a training step whose tokens are `ids` [B, S], and in one block. Without `other`, which
/// may use any algorithm.
Traffic mesh_step(const MeshSetting& of, std::span<const std::int32_t> ids);
Traffic mesh_block(const MeshSetting& of);

}  // namespace tsprun::theory
