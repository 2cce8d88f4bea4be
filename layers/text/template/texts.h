// Texts by characters, as Python sees them. All are UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text::jinja {

/// Returns the characters of a text. Spends the memory that this takes.
std::vector<std::string_view> characters_of(std::string_view text);
/// Returns how many characters a text has.
std::size_t characters_in(std::string_view text);
/// Returns the byte at which a character begins; the text's size behind the last one.
std::size_t place_of_character(std::string_view text, std::size_t number);
/// Returns where a text first has another one in it; npos: nowhere. Its time is linear, which that of std::string isn't. Spends
/// nothing: callers know how often they go over the same text.
std::size_t find_in(std::string_view text, std::string_view part);
/// Does the same, and spends the time.
std::size_t place_in(std::string_view text, std::string_view part);
/// Returns whether Python's str.isspace() is true for a character.
bool is_blank(char32_t code);
/// Returns the text without blanks at its ends or, if `which` isn't null, without those characters.
std::string_view strip(std::string_view text, const std::string* which, bool left, bool right);
/// Appends the text as Python's repr() shows it.
void append_quoted(std::string_view text, std::string& to);
/// Appends the text as JSON has it, with characters beyond ASCII as they are.
void append_json(std::string_view text, std::string& to);
/// Returns the text for a message: at most so many bytes of it, and "…" for the rest.
std::string brief(std::string_view text, std::size_t most = 60);

}  // namespace tsprun::detail::text::jinja
