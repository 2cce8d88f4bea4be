// Cuts and prints lengths of documents.
#include "layers/layout/document_lengths.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

std::vector<std::uint32_t> documents_within(std::span<const std::uint32_t> lengths, std::size_t tokens) {
  std::vector<std::uint32_t> within;
  for (const std::uint32_t length : lengths) {
    if (tokens == 0) break;
    within.push_back(static_cast<std::uint32_t>(std::min<std::size_t>(length, tokens)));
    tokens -= within.back();
  }
  return within;
}

std::string print_documents(std::span<const std::uint32_t> lengths) {
  std::string text;
  for (auto first = lengths.begin(); first != lengths.end();) {
    const auto end = std::find_if(first, lengths.end(), [&](std::uint32_t length) { return length != *first; });
    if (!text.empty()) text += ',';
    text += end - first == 1 ? fmt::format("{}", *first) : fmt::format("{}x{}", end - first, *first);
    first = end;
  }
  return text;
}

}  // namespace tsprun::detail
