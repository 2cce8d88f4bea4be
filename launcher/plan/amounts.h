// Numbers as tables print them.
#pragma once

#include <cstdint>

namespace tsp::launcher {

inline constexpr double kGiB = 1 << 30;

inline double real(std::uint64_t value) { return static_cast<double>(value); }

}  // namespace tsp::launcher
