// Sets of ranks as people and scripts read them: "0-3,8".
#pragma once

#include <span>
#include <string>

namespace tsprun::launcher {

/// Ascending numbers as ranges: "0-3,8". Of a text of more than `most` characters the beginning, and how many numbers there are:
/// "0,2,4,.. (32)".
std::string ranges_text(std::span<const int> numbers, std::size_t most = std::string::npos);

}  // namespace tsprun::launcher
