// Tries in a separate process whether OpenBLAS can be loaded and multiplies. If it can't get its work memory, OpenBLAS doesn't
// fail but spins for ever; without the trial, ranks would run into that one by one.
#pragma once

#include "core/kernels/level.h"
#include "launcher/transport_trial.h"

#include <cstddef>
#include <string>

namespace tsprun::detail::launcher {

/// Multiplies on `threads` threads at once, as a rank does, since each thread takes a work buffer of its own. Takes about 10 ms.
/// The result's `why`: the kernels that OpenBLAS chose, or what prevents it from working. The caller must have one thread.
Trial try_blas(int threads, kernels::Level level);

/// Returns why matrices can't be multiplied on this machine; empty: they can.
std::string blas_trouble(int threads, kernels::Level level);

}  // namespace tsprun::detail::launcher
