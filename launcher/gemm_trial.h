// Tries the library that multiplies matrices before ranks start, so that one that is missing, or doesn't work here, is refused.
#pragma once

#include "core/kernels/level.h"

#include <string>

namespace tsprun::detail::launcher {

/// Returns which library the ranks' products use, as kernels::load_gemm_library() does at this level. OpenBLAS is loaded and
/// multiplies in a child process, since ranks, which are forked, must load it themselves. Throws Error(refused) if it doesn't
/// work.
std::string try_gemm_library(kernels::Level level);

}  // namespace tsprun::detail::launcher
