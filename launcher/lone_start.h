// Finds signs in the environment that this tsprun is one of several, or has several machines at its disposal, though nothing told
// it so: schedulers whose variables don't say where nodes meet, or that aren't understood. Such a tsprun runs a whole job by
// itself, once in each pod or on the first machine alone, and succeeds: so it warns.
#pragma once

#include "launcher/options.h"
#include "transport/bootstrap/identity.h"

#include <string>

namespace tsprun::detail::launcher {

/// Returns a warning that names the variables that were seen and the options that would join the nodes; empty if there are none,
/// or if options or take_from_starter() have said how many nodes there are. Reads the file that PBS_NODEFILE names. To be called
/// after take_from_starter().
std::string lone_start(const GlobalOptions& options, const bootstrap::Getenv& get);

}  // namespace tsprun::detail::launcher
