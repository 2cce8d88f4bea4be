// Two tables, made once.
#include "layers/text/byte_alphabet.h"

#include "layers/text/characters.h"

#include <array>

namespace tsprun::detail::text {

namespace {

struct ByteAlphabet {
  std::array<std::string, 256> character;
  std::array<std::int16_t, kByteAlphabetEnd> byte{};

  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned value = 0; value < 256; ++value) {
      const bool itself = (value >= '!' && value <= '~') || (value >= 0xa1 && value != 0xad);
      const char32_t code = itself ? value : next++;
      byte[code] = static_cast<std::int16_t>(value);
      append(character[value], code);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace

std::string_view character_of_byte(std::uint8_t byte) { return byte_alphabet().character[byte]; }

std::optional<std::uint8_t> byte_of_character(char32_t code) {
  if (code >= kByteAlphabetEnd || byte_alphabet().byte[code] < 0) return {};
  return static_cast<std::uint8_t>(byte_alphabet().byte[code]);
}

void append_byte_characters(std::string& result, std::string_view bytes) {
  const ByteAlphabet& alphabet = byte_alphabet();
  for (const char byte : bytes) result += alphabet.character[static_cast<unsigned char>(byte)];
}

}  // namespace tsprun::detail::text
