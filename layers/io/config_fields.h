// Reads the fields of one config.json, for its parser only. Errors name file, field and what was expected.
// Fields that change the computation are refused unless their value is neutral; unknown fields are listed.
#pragma once

#include "layers/io/config.h"
#include "layers/io/json_text.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Largest value accepted for any size.
inline constexpr std::size_t kMaxConfigSize = std::numeric_limits<std::int32_t>::max();
/// Largest number of layers accepted.
inline constexpr std::size_t kMaxLayers = 10'000;

/// Access to the fields of one JSON object. Methods that read throw Error(refused) for values of the wrong type or range.
class ConfigFields {
 public:
  /// Borrows both. `where` begins error messages. A field with an empty name is missing.
  ConfigFields(const nlohmann::json& object, const std::string& where) : object_(object), where_(where) {}

  /// Returns a field's value; null if the field is missing or null.
  const nlohmann::json* find(std::string_view field) const;
  /// Throws Error(refused) with the field, what was expected, and what was found.
  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const;
  /// Returns an integer from 1 to `largest`, or the fallback if the field is missing.
  std::size_t size(std::string_view field, std::optional<std::size_t> fallback = std::nullopt,
                   std::size_t largest = kMaxConfigSize) const;
  /// Returns a positive finite number, or the fallback if the field is missing.
  double positive(std::string_view field, double fallback) const;
  /// Returns a number p with 0 ≤ p < 1, or the fallback if the field is missing.
  double probability(std::string_view field, double fallback) const;
  /// Returns a boolean, or the fallback if the field is missing.
  bool flag(std::string_view field, bool fallback) const;

  /// Returns the row whose `name` is a field's text; the first if the field is missing.
  template <class Row>
  const Row& choice(std::string_view field, std::span<const Row> rows) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr) return rows.front();
    std::string expected;
    for (const Row& row : rows) {
      if (*value == row.name) return row;
      expected.append(1, '"').append(row.name).append("\" or ");
    }
    refuse(field, expected + "null (nothing else is supported)");
  }

  /// Throws Error(refused) for a field that is present with a value that isn't neutral.
  void refuse_restricted(std::span<const RestrictedFields> restricted) const;
  /// Throws Error(refused) if the file has a field "architectures" that contains none of `names`. The message shows the first as
  /// expected.
  void require_architecture(std::span<const std::string_view> names) const;
  /// Returns a line for each field of the file that was neither read nor is `ignored`.
  std::vector<std::string> unknown(std::span<const std::string_view> ignored) const;

 private:
  const nlohmann::json& object_;
  const std::string& where_;
  mutable std::set<std::string_view> asked_;  ///< borrowed names
};

}  // namespace tsprun::detail
