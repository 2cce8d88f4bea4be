// Reads the fields of one config.json, for the parsers of model families only. Errors name file, field and what was expected.
// Fields that change the computation are refused unless their value is neutral; unknown fields are listed.
#pragma once

#include "layers/io/config.h"
#include "layers/io/json_text.h"

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

/// A field that changes the computation. Only its neutral values are supported; null is always neutral.
struct RestrictedField {
  std::string_view field;
  std::vector<nlohmann::json> neutral;
};

/// Access to the fields of one JSON object. Methods that read throw Error(refused) for values of the wrong type or range.
class ConfigFields {
 public:
  /// Borrows both. `where` begins error messages.
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

  /// Throws Error(refused) for a field that is present with a value that isn't neutral.
  void refuse_restricted(std::span<const RestrictedField> fields) const;
  /// Throws Error(refused) if the file has a field "architectures" that contains none of `names`. The message shows the first as
  /// expected.
  void require_architecture(std::span<const std::string_view> names) const;
  /// Returns a line for each field that is in neither list.
  std::vector<std::string> unknown(std::span<const std::string_view> known, std::span<const RestrictedField> restricted) const;

 private:
  const nlohmann::json& object_;
  const std::string& where_;
};

/// Parses a config.json of model_type "gpt2" (config_gpt2.cpp). Throws Error(refused).
LoadedConfig parse_gpt2_config(const ConfigFields& fields, const std::string& where);
/// Returns a GPT-2 model as config.json.
std::string gpt2_json(const ModelConfig& config, std::string_view torch_dtype);

}  // namespace tsprun::detail
