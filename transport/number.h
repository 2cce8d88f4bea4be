// Words of a text, and numbers in texts that must be nothing but a number.
#pragma once

#include <algorithm>
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

/// Takes what stands before the first separator, or all, off the front of a text, and the separator with it.
inline std::string_view take_word(std::string_view& text, char separator) {
  const std::string_view word = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(word.size() + 1, text.size()));
  return word;
}

}  // namespace tsprun::detail
