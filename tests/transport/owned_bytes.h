// Bytes of a text, for values of the store.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace tsprun::detail::test {

/// Returns a copy of a text's bytes.
inline std::vector<std::byte> owned_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace tsprun::detail::test
