// UTF-8, properties of characters, and normal forms (utf8proc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::detail::text {

/// U+FFFD in UTF-8: what stands for bytes that are no text.
inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// A character of a text, and how many bytes it takes there.
struct Character {
  char32_t code;
  std::size_t bytes;
};
/// Returns the character that begins at byte `at`. Preconditions: at < text.size(), and the text is UTF-8.
inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (first < 0xf0) return {(first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}
/// Returns the last character before byte `end`. Preconditions: end > 0, and the text is UTF-8.
Character character_before(std::string_view text, std::size_t end);
/// Appends a character in UTF-8.
void append(std::string& text, char32_t code);

/// Returns how many bytes at the beginning are UTF-8: all, or up to the first that isn't. `bytes_wrong`, if there is one: how
/// many bytes stand for one U+FFFD there, as browsers and Rust count them; 0: the text ends within a character.
std::size_t utf8_prefix(std::string_view text, std::size_t& bytes_wrong);

/// Properties, as Rust's standard library and the regex crate define them.
bool is_white_space(char32_t code);
bool is_word(char32_t code);         ///< \w: letters, marks, digits, connectors, joiners
bool is_numeric(char32_t code);      ///< Nd, Nl, No
bool is_punctuation(char32_t code);  ///< P, and ASCII's symbols
bool is_nonspacing_mark(char32_t code);
bool is_mark(char32_t code);
bool is_cased(char32_t code);  ///< has an upper or a lower case
bool is_other(char32_t code);  ///< control, format, private use
/// Appends a character in lower case, whatever stands beside it.
void append_lower(std::string& text, char32_t code);

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
/// Returns a text in a normal form. Precondition: it is UTF-8.
std::string normalized(std::string_view text, NormalForm form);

/// Returns where the grapheme cluster ends that begins at byte `at`.
std::size_t grapheme_end(std::string_view text, std::size_t at);

}  // namespace tsprun::detail::text
