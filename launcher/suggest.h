// What options of other programs are called here.
#pragma once

#include <string_view>

namespace tsprun::detail::launcher {

/// Returns what to write here for an option of mpirun, torchrun, srun, nccl-tests or a training script, such as "-n N"; empty:
/// not known.
std::string_view spelling_here(std::string_view option);

}  // namespace tsprun::detail::launcher
