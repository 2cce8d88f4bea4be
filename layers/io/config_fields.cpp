// Reads one field at a time, checking its type and range.
#include "layers/io/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace tsprun::detail {

using nlohmann::json;

const json* ConfigFields::find(std::string_view field) const {
  asked_.insert(field);
  const auto at = field.empty() ? object_.end() : object_.find(field);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void ConfigFields::refuse(std::string_view field, std::string_view expected) const {
  refuse_field(object_, where_, "", field, expected);
}

std::size_t ConfigFields::size(std::string_view field, std::optional<std::size_t> fallback, std::size_t largest) const {
  const json* value = find(field);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr || !value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
      value->get<std::uint64_t>() > largest) {
    refuse(field, fmt::format("an integer from 1 to {}", largest));
  }
  return value->get<std::size_t>();
}

double ConfigFields::positive(std::string_view field, double fallback) const {
  const json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0) {
    refuse(field, "a positive finite number");
  }
  return value->get<double>();
}

double ConfigFields::probability(std::string_view field, double fallback) const {
  const json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !(value->get<double>() >= 0 && value->get<double>() < 1)) {
    refuse(field, "a probability from 0 to below 1");
  }
  return value->get<double>();
}

bool ConfigFields::flag(std::string_view field, bool fallback) const {
  const json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(field, "true or false");
  return value->get<bool>();
}

void ConfigFields::refuse_restricted(std::span<const RestrictedFields> restricted) const {
  for (const auto& [values, names] : restricted) {
    const json neutral = json::parse(values);
    for (const std::string_view field : names) {
      const json* value = find(field);
      if (value == nullptr || std::ranges::find(neutral, *value) != neutral.end()) continue;
      std::string expected;
      for (const json& each : neutral) expected += each.dump() + " or ";
      refuse(field, expected + "null (nothing else is supported)");
    }
  }
}

void ConfigFields::require_architecture(std::span<const std::string_view> names) const {
  const json* architectures = find("architectures");
  if (architectures == nullptr) return;
  const bool known =
      architectures->is_array() && std::any_of(architectures->begin(), architectures->end(), [&](const json& each) {
        return each.is_string() && std::ranges::find(names, each.get_ref<const std::string&>()) != names.end();
      });
  if (!known) refuse("architectures", fmt::format("[\"{}\"] (nothing else is supported)", names.front()));
}

std::vector<std::string> ConfigFields::unknown(std::span<const std::string_view> ignored) const {
  std::vector<std::string> warnings;
  for (const auto& [key, value] : object_.items()) {
    if (!key.empty() && (asked_.contains(key) || std::ranges::find(ignored, key) != ignored.end())) continue;
    warnings.push_back(fmt::format("{}: field \"{}\" is not known and ignored", where_, shown(key)));
  }
  return warnings;
}

}  // namespace tsprun::detail
