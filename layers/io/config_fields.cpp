// Refuses what isn't supported, and lists what isn't known.
#include "layers/io/config_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

using nlohmann::json;

void ConfigFields::refuse_restricted(std::span<const RestrictedFields> restricted, std::span<const std::string_view> honoured) {
  for (const auto& [values, names] : restricted) {
    const json neutral = json::parse(values);
    for (const std::string_view field : names) {
      if (std::ranges::find(honoured, field) != honoured.end()) continue;
      const json* value = find(field);
      if (value == nullptr || std::ranges::find(neutral, *value) != neutral.end()) continue;
      std::string expected;
      for (const json& each : neutral) expected += each.dump() + " or ";
      refuse(field, expected + "null (nothing else is supported)");
    }
  }
}

void ConfigFields::require_architecture(std::span<const std::string_view> names) {
  const json* architectures = find("architectures");
  if (architectures == nullptr) return;
  const bool known =
      architectures->is_array() && std::any_of(architectures->begin(), architectures->end(), [&](const json& each) {
        return each.is_string() && std::ranges::find(names, each.get_ref<const std::string&>()) != names.end();
      });
  if (known) return;
  if (architectures->is_array() && !architectures->empty())
    refuse_entry("architectures", 0, fmt::format("\"{}\" (nothing else is supported)", names.front()));
  refuse("architectures", fmt::format("a list with \"{}\" in it, or no such field", names.front()));
}

std::vector<std::string> ConfigFields::unknown(std::span<const std::string_view> ignored) const {
  std::vector<std::string> warnings;
  for (const auto& [key, value] : object().items()) {
    if (!key.empty() && (was_asked(key) || std::ranges::find(ignored, key) != ignored.end())) continue;
    warnings.push_back(fmt::format("{}: field \"{}{}\" is not known and ignored", where(), path(), shown(key)));
  }
  return warnings;
}

}  // namespace tsprun::detail
