// Checks the environment variables that tsprun's own commands obey, before a rank starts.
#pragma once

namespace tsprun::launcher {

/// Checks that ChoiceTable can read TSP_ALGORITHMS, and that TSP_KERNELS names a kernel level that this machine offers. Throws
/// Error(refused) naming the variable, its value and what works.
void check_environment();

}  // namespace tsprun::launcher
