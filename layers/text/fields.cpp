// Words what is wrong as JsonObject does.
#include "layers/text/fields.h"

#include "layers/text/characters.h"

#include <fmt/format.h>

#include <stdexcept>

namespace tsprun::detail::text {

std::string raw_text(JsonObject& object, std::string_view field, const char* usual) {
  constexpr std::size_t kMost = 65536;
  const nlohmann::json* value = object.find(field);
  if (value == nullptr && usual != nullptr) return usual;
  if (value == nullptr || !value->is_string() || value->get_ref<const std::string&>().size() > kMost)
    object.refuse(field, fmt::format("text of at most {} bytes", kMost));
  return value->get<std::string>();
}

char32_t one_character(JsonObject& object, std::string_view field, std::string_view usual) {
  const std::string text = raw_text(object, field, usual.empty() ? nullptr : usual.data());
  if (text.empty() || character_at(text, 0).bytes != text.size()) object.refuse(field, "one character");
  return character_at(text, 0).code;
}

Pattern pattern(JsonObject& object, std::string_view field) {
  JsonObject inside = object.inside(field);
  if (inside.find("String") != nullptr) return Pattern::literal(raw_text(inside, "String"));
  const std::string source = raw_text(inside, "Regex");
  try {
    return Pattern::expression(source);
  } catch (const std::invalid_argument& failure) {
    inside.refuse("Regex", fmt::format("a regular expression that Oniguruma takes ({})", failure.what()));
  }
}

}  // namespace tsprun::detail::text
