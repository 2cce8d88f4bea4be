// What ranks must do so that some may stand for others in virtual time: see "Folding" in transport/sim/sim_transport.h.
#pragma once

#include "core/program/program.h"
#include "transport/sim/unit_grid.h"

#include <functional>
#include <optional>
#include <vector>

namespace tsprun::detail {

/// Returns whether shifting the units along an axis of the grid only rotates a group's order of ranks, so that the rank after
/// another one stays the rank after it, as rings, trees and hierarchies need it. A group that is shifted to other ranks is a
/// circle, too, along that axis.
bool is_circle(const std::vector<int>& members, const sim::UnitGrid& grid);

/// Returns the algorithm by which a call is played among ranks of which some stand for others; null if it can't be. An algorithm
/// with a root loads one rank more than the others, so it is replaced by a direct one without, which moves as much, if there is
/// one. So is that of a small call among ranks that aren't a circle; a large one can't be played. `ranks`: of its group.
Start* folded_algorithm(const ProgramCall& call, std::size_t ranks, bool circle);

/// Compares a rank of unit `number` with the rank in its place of unit 0, which it does the same as, shifted, if it makes the
/// same operations and waits in the same order, between ranks that are as far away, with as many bytes for each (where something
/// is cut unevenly, but for 64 or a ten-thousandth), and if those with ranks of other units can be folded. Returns by how many
/// seconds the kernels between them differ; nothing if it doesn't do the same. `price`: seconds that a kernel takes.
std::optional<double> differs_by(const Program& of_first_unit, const Program& other, int number, const sim::UnitGrid& grid,
                                 const std::function<double(const KernelCost&)>& price);

}  // namespace tsprun::detail
