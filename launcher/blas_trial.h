// Whether OpenBLAS can be loaded and multiplies here, tried in a process of its own: where it can't have its work memory it
// doesn't fail but spins for ever, and ranks would find that out one by one.
#pragma once

#include "launcher/transport_trial.h"

#include <cstddef>
#include <string>

namespace tsprun::launcher {

/// Multiplies on `threads` threads at once, as a rank does: each has a work buffer of its own. Takes some 10 ms. `why`: the
/// kernels that OpenBLAS chose, or what stands in its way. The caller has one thread.
Trial try_blas(int threads);

/// What a command that multiplies matrices must be told; empty: nothing.
std::string blas_trouble(int threads);

}  // namespace tsprun::launcher
