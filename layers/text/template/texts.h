// Texts by characters, as Python sees them. All are UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text::jinja {

/// Returns the characters of a text.
std::vector<std::string_view> characters_of(std::string_view text);
/// Returns where a text first has another one in it; npos: nowhere. Its time is linear, which that of std::string isn't.
std::size_t place_in(std::string_view text, std::string_view part);
/// Returns whether Python's str.isspace() is true for a character.
bool is_blank(char32_t code);
/// Returns the text without blanks at its ends or, if `which` isn't null, without those characters.
std::string_view strip(std::string_view text, const std::string* which, bool left, bool right);
/// Returns the text as Python's repr() shows it.
std::string quoted(std::string_view text);
/// Returns the text as JSON has it, with characters beyond ASCII as they are.
std::string json_text(std::string_view text);

}  // namespace tsprun::detail::text::jinja
