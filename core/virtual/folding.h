// What ranks must do so that some may stand for others in virtual time: see "Folding" in transport/sim/sim_transport.h.
#pragma once

#include "core/program/program.h"
#include "transport/sim/turns.h"

#include <functional>
#include <vector>

namespace tsprun::detail {

/// Returns whether a group's ranks stay in their order, round and round, when units turn along any axis: what algorithms need
/// that treat them as a circle.
bool is_circle(const std::vector<int>& members, const sim::Turns& turns);

/// Returns the algorithm by which a call is played among ranks of which some stand for others; null if it can't be. A root's work
/// is its own, so a call whose algorithm has one takes a direct algorithm without, which moves as much, if there is one. So does
/// a small call of ranks that aren't a circle; with a large one they can't stand for others.
Start* folded_algorithm(const ProgramCall& call, bool circle);

/// Returns whether a rank of unit `number` does what the rank in its place of unit 0 does, turned: the same operations and waits
/// in the same order, between ranks that are as far away, and kernels between them that take as long. False, too, if they make a
/// call with ranks of other units that can't be folded. Where something is cut unevenly, operations may differ by some elements,
/// kernels by a little of
/// their time; `price`: seconds that a kernel takes.
bool does_the_same(const Program& of_first_unit, const Program& other, int number, const sim::Turns& turns,
                   const std::function<double(const KernelCost&)>& price);

}  // namespace tsprun::detail
