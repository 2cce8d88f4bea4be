// Lengths of the documents that are packed one behind the other into each sequence of a batch, as forecasts are given them: real
// runs find documents in their ids (packed_documents.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail {

/// Returns the documents of a sequence's first `tokens` tokens, of which the last may be cut.
std::vector<std::uint32_t> documents_within(std::span<const std::uint32_t> lengths, std::size_t tokens);
/// Returns lengths as text: "8192,4096,2x2048".
std::string print_documents(std::span<const std::uint32_t> lengths);

}  // namespace tsprun::detail
