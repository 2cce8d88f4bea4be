// Numbers in texts that must be nothing but a number.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace tsprun::detail {

/// Returns the number that all of a text is, without spaces or a plus sign; nothing if it isn't one, or none of this type.
template <class Number>
std::optional<Number> number_from(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace tsprun::detail
