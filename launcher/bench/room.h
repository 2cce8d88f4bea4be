// Checks that what `bench` measures fits into memory.
#pragma once

#include "launcher/bench/case.h"
#include "launcher/options.h"

#include <cstdint>
#include <span>

namespace tsprun::detail::bench {

/// Checks that each rank of this machine has room for the buffers of these operations and sizes. Throws Error(refused), naming
/// what there is, and a size that fits.
void check_room(const launcher::GlobalOptions& global, std::span<const Kind> kinds, std::span<const std::uint64_t> sizes,
                DType dtype);

}  // namespace tsprun::detail::bench
