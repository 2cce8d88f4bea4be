// Strict parsing of JSON from files. What nlohmann-json would accept silently is an error here (a duplicate name, unlimited
// nesting), and errors name the field at which they occurred. json_object.h reads the fields of what was parsed.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace tsprun::detail {

/// Parses `text`. Throws Error(refused) with a message that begins with `where`: malformed text, a NUL byte anywhere, NaN or
/// infinite numbers (with the field's name), duplicate names, more than 32 levels of nesting.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Returns text from a file with a question mark for every character that a terminal could take for a command or that changes the
/// direction of what follows, and for every byte that is no UTF-8.
std::string printable(std::string_view text);
/// Returns text from a file in a form that is safe in error messages: as printable() does, cut after 120 bytes.
std::string shown(std::string_view text);
/// Returns a JSON value in a form that is safe in error messages: "an object", "an array", else as shown() does.
std::string shown_value(const nlohmann::json& value);

}  // namespace tsprun::detail
