// The alphabet of byte-level tokenizers: a printable character for each byte. '!' to '~' and most of Latin-1 stand for
// themselves, the others for U+0100 and on: a blank is Ġ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail::text {

/// Number of code points below which all characters of the alphabet lie.
inline constexpr char32_t kByteAlphabetEnd = 0x144;

/// Returns the character, in UTF-8, that stands for a byte.
std::string_view character_of_byte(std::uint8_t byte);
/// Returns the byte for which a character stands, if it is of the alphabet.
std::optional<std::uint8_t> byte_of_character(char32_t code);
/// Appends each byte's character.
void append_byte_characters(std::string& result, std::string_view bytes);

}  // namespace tsprun::detail::text
