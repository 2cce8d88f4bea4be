// Fields of tokenizer.json that json_object.h doesn't read: texts as they are, patterns, lists of parts that each have a type.
#pragma once

#include "layers/io/json_object.h"
#include "layers/text/expression.h"

#include <string>
#include <string_view>

namespace tsprun::detail::text {

/// Returns a text of at most 64 KiB, whatever characters it has; `usual` if the field is missing, unless that is null. Throws
/// Error(refused).
std::string raw_text(JsonObject& object, std::string_view field, const char* usual = nullptr);
/// Returns a text of one character. Throws Error(refused).
char32_t one_character(JsonObject& object, std::string_view field, std::string_view usual = {});
/// Returns the pattern of a field that is {"String": …} or {"Regex": …}. Throws Error(refused).
Pattern pattern(JsonObject& object, std::string_view field);

/// Calls part(object) for a part, and for each in the list of a part of type "Sequence", from the first to the last.
template <class Part>
void each_part(JsonObject object, std::string_view list, const Part& part) {
  if (raw_text(object, "type") != "Sequence") return part(object);
  const std::size_t count = object.entries(list, 0, 1000);
  for (std::size_t i = 0; i < count; ++i) each_part(object.entry(list, i), list, part);
}

}  // namespace tsprun::detail::text
