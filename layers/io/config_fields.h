// Rules for the fields of a config.json: those that change the computation are refused unless their value is neutral, and
// unknown fields are listed rather than refused.
#pragma once

#include "layers/io/config.h"
#include "layers/io/json_object.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Largest value accepted for any size.
inline constexpr std::size_t kMaxConfigSize = std::numeric_limits<std::int32_t>::max();
/// Largest number of layers accepted.
inline constexpr std::size_t kMaxLayers = 10'000;

/// Access to the fields of a config.json.
class ConfigFields : public JsonObject {
 public:
  using JsonObject::JsonObject;

  /// Returns whether the file has a field, null or not.
  bool has(std::string_view field) const { return object().contains(field); }

  /// Returns an integer from 1 to `largest`, or the fallback if the field is missing.
  std::size_t size(std::string_view field, std::optional<std::size_t> fallback = {}, std::size_t largest = kMaxConfigSize) {
    return integer(field, 1, largest, fallback);
  }
  /// Returns a positive finite number, or the fallback if the field is missing.
  double positive(std::string_view field, double fallback) {
    return number_that([](double value) { return std::isfinite(value) && value > 0; }, field, "a positive finite number",
                       fallback);
  }
  /// Returns a number p with 0 ≤ p < 1, or the fallback if the field is missing.
  double probability(std::string_view field, double fallback) {
    return number_that([](double value) { return value >= 0 && value < 1; }, field, "a probability from 0 to below 1", fallback);
  }

  /// Returns the row whose `name` is a field's text; the first if the field is missing.
  template <class Row>
  const Row& choice(std::string_view field, std::span<const Row> rows) {
    const nlohmann::json* value = find(field);
    if (value == nullptr) return rows.front();
    std::string expected;
    for (const Row& row : rows) {
      if (*value == row.name) return row;
      expected.append(1, '"').append(row.name).append("\" or ");
    }
    refuse(field, expected + "null (nothing else is supported)");
  }

  /// Throws Error(refused) for a field that is present with a value that isn't neutral, unless it is one of `honoured`.
  void refuse_restricted(std::span<const RestrictedFields> restricted, std::span<const std::string_view> honoured = {});
  /// Throws Error(refused) if the file has a field "architectures" that contains none of `names`. The message shows the first as
  /// expected.
  void require_architecture(std::span<const std::string_view> names);
  /// Returns a line for each field of the file that was neither read nor is `ignored`.
  std::vector<std::string> unknown(std::span<const std::string_view> ignored) const;
};

}  // namespace tsprun::detail
