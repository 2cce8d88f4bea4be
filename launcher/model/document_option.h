// The option --documents of forecasts: how long the documents are that are packed into each sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Parses the value of --documents for sequences of `sequence` tokens: lengths between commas, "8192,4096,2x2048", or "8x", as
/// many documents whose lengths differ by at most one token. Returns the length of each document; none for an empty text. Throws
/// Error(refused), which says what would work, unless they are `sequence` tokens together.
std::vector<std::uint32_t> parse_documents(const std::string& text, std::size_t sequence);

}  // namespace tsprun::detail::launcher
