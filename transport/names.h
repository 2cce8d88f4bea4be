// Enumerators by their names, where a table has the name of each by its value.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace tsprun::detail {

/// Returns the name of a value; "unknown" for one outside the table.
template <class E>
constexpr std::string_view name_in(std::span<const std::string_view> names, E value) {
  const auto index = static_cast<std::size_t>(value);
  return index < names.size() ? names[index] : "unknown";
}

/// Returns the value that has this name; nothing if none has.
template <class E>
constexpr std::optional<E> value_in(std::span<const std::string_view> names, std::string_view text) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<E>(i);
  }
  return std::nullopt;
}

}  // namespace tsprun::detail
