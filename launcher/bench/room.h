// Checks that what `bench` measures fits into memory.
#pragma once

#include "launcher/bench/case.h"
#include "launcher/options.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace tsprun::detail::bench {

/// Checks that each rank of this machine has room for the buffers of these operations and sizes. Throws Error(refused), naming
/// what there is, and a size that fits. `option`: the option that gave the largest size, for the message.
void check_room(const launcher::GlobalOptions& global, std::span<const Kind> kinds, std::span<const std::uint64_t> sizes,
                DType dtype, std::string_view option);

}  // namespace tsprun::detail::bench
