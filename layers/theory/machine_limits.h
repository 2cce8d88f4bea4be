// Ranges of a machine file's numbers that both kinds of machine have.
#pragma once

namespace tsprun::detail::theory {

inline constexpr double kLargest = 1e30;
inline constexpr double kLongestLatency = 1;

}  // namespace tsprun::detail::theory
