// Formats sets of ranks for people and scripts: "0-3,8".
#pragma once

#include <span>
#include <string>

namespace tsprun::detail::launcher {

/// Returns ascending numbers as ranges: "0-3,8". A text of more than `most` characters is cut and ends with the count: "0,2,4,..
/// (32)".
std::string ranges_text(std::span<const int> numbers, std::size_t most = std::string::npos);

}  // namespace tsprun::detail::launcher
