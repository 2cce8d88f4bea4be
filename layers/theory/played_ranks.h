// Which ranks of a layout are played for all of it: see "Folding" in transport/sim/sim_transport.h.
//
// Replicas of a data-parallel job do the same, so one *unit* of whole replicas on whole nodes stands for the others. Within a
// unit nodes may do the same, too, with their numbers along the layout's axes shifted (transport/sim/unit_grid.h): that depends
// on the schedule, and the programs of the unit's ranks tell it.
#pragma once

#include "core/program/program.h"
#include "layers/layout/layout.h"
#include "layers/theory/machine.h"
#include "transport/sim/unit_grid.h"

#include <functional>
#include <optional>
#include <vector>

namespace tsprun::detail::theory {

/// Largest number of ranks that are played in reasonable time, since each talks to all others.
inline constexpr int kMostPlayed = 1024;
/// Returns the number of ranks that stand for all of a layout's: whole replicas on whole nodes; all of them if replicas and nodes
/// don't fit into each other.
int unit_of(const Layout& layout, int gpus_per_node);
/// Returns the same on a machine: if it has leaf switches, whole leaves of nodes, since nodes of a leaf share its links.
int unit_of(const Layout& layout, const Machine& machine);

/// Finds out whether fewer ranks than those of a unit can be played: those of a node, or of a leaf's nodes. On machines of cores,
/// whose ranks pay for each message, they can't.
class FewestRanks {
 public:
  /// `price`: seconds that a kernel takes. `times`: how many times as many layers, all alike, a step has as the programs.
  FewestRanks(const Layout& layout, const Machine& machine, std::function<double(const KernelCost&)> price, double times = 1);
  /// Takes the program of the unit's next rank, from 0, and how long the kernels of all its layers take.
  void add(const Program& program, double seconds);
  /// Returns how the ranks to be played stand for all; nothing if they don't, as the programs so far say.
  const std::optional<sim::UnitGrid>& grid() const { return grid_; }
  /// Returns the largest part of its kernels' time that a rank spends between other messages than the one that is played for it.
  double difference() const { return difference_; }

 private:
  std::function<double(const KernelCost&)> price_;
  double times_;
  std::optional<sim::UnitGrid> grid_;
  std::vector<Program> first_;  // of the ranks to be played
  double longest_ = 0;          // seconds of the kernels of the one of these that computes longest
  double difference_ = 0;
  int ranks_ = 0;  // so far
};

}  // namespace tsprun::detail::theory
