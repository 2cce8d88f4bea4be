// What binds a step: the resource that would shorten it most, or nearly so, if it took no time, found by playing the step without
// one resource after another. That takes long, so a resource that can hardly gain as much as another one does isn't tried: the
// step takes at least as long as the kernels of the rank that computes longest, and as the busiest link carries something.
#pragma once

#include "layers/theory/machine.h"
#include "layers/theory/simulate.h"
#include "transport/sim/fabric.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::theory {

/// A machine with a resource that takes no time.
struct WhatIf {
  std::string_view resource;
  Machine without;
  double host_seconds = 0;                   ///< as in SimulateOptions
  double least = 0;                          ///< seconds that a step takes at least
  std::optional<Machine> without_latency{};  ///< of a way of messages: the machine on which their latency alone takes no time

  /// Returns the machine without the latency of a way of messages. Precondition: without_latency.
  WhatIf of_latency() const { return {.resource = resource, .without = *without_latency, .host_seconds = host_seconds}; }
};

/// Returns the machine without each of its resources in turn.
std::vector<WhatIf> what_ifs(const Machine& machine, double host_seconds);

/// Returns how long the busiest link of a step that was played on `fabric` would be busy if links were as fast as those of
/// `other`. The step would take at least as long.
double busiest_seconds(const Simulated& step, const sim::FabricShape& fabric, const sim::FabricShape& other);

/// Returns what would shorten a step of so many seconds most, or nearly so, if it took no time; `played`: how long it takes then;
/// `latency_gains`: how many seconds shorter it is if only the latency of these links takes no time, which is named if that is
/// most of what they gain. Empty if nothing shortens it.
std::string what_binds(std::vector<WhatIf> all, double seconds, const std::function<double(const WhatIf&)>& played,
                       const std::function<double(const WhatIf&)>& latency_gains);

}  // namespace tsprun::detail::theory
