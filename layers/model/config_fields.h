// The fields of one config.json, for the parsers of model families alone: reading with errors that name file, field and what was
// expected; fields that change the computation refused unless neutral; unknown ones listed.
#pragma once

#include "layers/model/config.h"
#include "layers/model/json_text.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun {

inline constexpr std::size_t kMaxConfigSize = std::numeric_limits<std::int32_t>::max();
inline constexpr std::size_t kMaxLayers = 10'000;

/// A field that changes the computation; only the neutral values are computed here. null is always neutral.
struct RestrictedField {
  std::string_view field;
  std::vector<nlohmann::json> neutral;
};

class ConfigFields {
 public:
  /// Both are borrowed.
  ConfigFields(const nlohmann::json& object, const std::string& where) : object_(object), where_(where) {}

  /// Null counts as missing.
  const nlohmann::json* find(std::string_view field) const;
  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const;
  /// An integer from 1 to `largest`.
  std::size_t size(std::string_view field, std::optional<std::size_t> fallback = std::nullopt,
                   std::size_t largest = kMaxConfigSize) const;
  double positive(std::string_view field, double fallback) const;
  /// From 0 to below 1.
  double probability(std::string_view field, double fallback) const;
  bool flag(std::string_view field, bool fallback) const;

  /// Throws for those that are there and not neutral.
  void refuse_restricted(std::span<const RestrictedField> fields) const;
  /// One of `names` must be among the file's "architectures", if it has that field; the first is shown as expected.
  void require_architecture(std::span<const std::string_view> names) const;
  /// A line for each field that is in none of these lists.
  std::vector<std::string> unknown(std::span<const std::string_view> known, std::span<const RestrictedField> restricted) const;

 private:
  const nlohmann::json& object_;
  const std::string& where_;
};

/// A config.json of model_type "gpt2" (config_gpt2.cpp). Throws Error(refused).
LoadedConfig parse_gpt2_config(const ConfigFields& fields, const std::string& where);
/// The other way.
std::string gpt2_json(const ModelConfig& config, std::string_view torch_dtype);

}  // namespace tsprun
