// Maps options of mpirun, torchrun, srun, nccl-tests and training scripts to tsprun's.
#pragma once

#include <string_view>

namespace tsprun::detail::launcher {

/// Returns what to write here for an option of mpirun, torchrun, srun, nccl-tests or a training script, such as "-n N"; empty:
/// not known.
std::string_view spelling_here(std::string_view option);

}  // namespace tsprun::detail::launcher
