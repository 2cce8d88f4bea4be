// Bytes as text: two lower-case hexadecimal digits for each.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Returns the digits of some bytes.
inline std::string hexadecimal(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte each : bytes) {
    text += kDigits[std::to_integer<std::size_t>(each >> 4)];
    text += kDigits[std::to_integer<std::size_t>(each & std::byte{15})];
  }
  return text;
}

/// Returns the bytes of which these are the digits; nothing if the text is anything else.
inline std::optional<std::vector<std::byte>> from_hexadecimal(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<std::byte> bytes;
  for (; !text.empty(); text.remove_prefix(2)) {
    const int high = digit(text[0]);
    const int low = digit(text[1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(16 * high + low));
  }
  return bytes;
}

}  // namespace tsprun::detail
