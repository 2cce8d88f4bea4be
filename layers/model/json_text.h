// Strict reading of JSON that comes out of a file: what nlohmann-json would let pass silently is an error here (a name given
// twice, nesting without end), and an error names the field it lies at. Only the room's own parsers include this.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace tsprun {

/// Parses `text`. Throws Error(refused), which begins with `where`: malformed text, a NUL
/// anywhere (and whatever stands behind it), NaN or infinite numbers (with the field's
/// name), duplicate names, more than 32 levels.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Text out of a file as an error message may show it: control characters replaced, cut after 120 bytes.
std::string shown(std::string_view text);
/// The same for any JSON value.
std::string shown_value(const nlohmann::json& value);

}  // namespace tsprun
