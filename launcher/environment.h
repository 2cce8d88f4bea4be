// Checks the environment variables that tsprun's own commands obey, before a rank starts (the variables:
// transport/environment.h).
#pragma once

#include <string_view>

namespace tsprun::detail::launcher {

/// Checks that ChoiceTable can read TSP_ALGORITHMS, that TSP_KERNELS names a kernel level that this machine offers, and that no
/// variable is set which `command` would ignore. Throws Error(refused) naming the variable, its value and what works.
void check_environment(std::string_view command);

}  // namespace tsprun::detail::launcher
