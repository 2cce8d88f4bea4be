// The environment variables that tsprun's own commands obey, checked before a rank starts.
#pragma once

namespace tsprun::launcher {

/// TSP_ALGORITHMS must be what ChoiceTable reads, TSP_KERNELS a level of kernels that there is and that this machine offers.
/// Throws Error(refused) naming the variable, its value and what works.
void check_environment();

}  // namespace tsprun::launcher
