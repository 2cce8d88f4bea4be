// Maps options of mpirun, torchrun, srun, nccl-tests and training scripts to tsprun's.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace tsprun::detail::launcher {

/// Returns what to write here for an option of mpirun, torchrun, srun, nccl-tests or a training script, such as "-n N"; empty:
/// not known.
std::string_view spelling_here(std::string_view option);

/// Returns all of them: another program's spelling without dashes, and what is written here.
std::span<const std::pair<std::string_view, std::string_view>> spellings_elsewhere();

}  // namespace tsprun::detail::launcher
