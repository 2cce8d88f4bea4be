// Ranges of numbers in all parts of a machine file.
#pragma once

namespace tsprun::detail::theory {

inline constexpr double kLargest = 1e30;
inline constexpr double kLongestLatency = 1;
/// Smallest fraction of a peak.
inline constexpr double kLeastEfficiency = 0.001;

}  // namespace tsprun::detail::theory
