// Formats numbers for tables.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>

namespace tsprun::detail::launcher {

/// Converts to double.
inline double real(std::uint64_t value) { return static_cast<double>(value); }

/// Formats bytes as "0 B", "640.0 KiB" or "21.34 GiB": powers of 1024, in the largest unit in which the number is at least 1,
/// with about four digits.
inline std::string readable_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1023.95 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 100 ? 2 : 1, kUnits[unit]);
}

}  // namespace tsprun::detail::launcher
