// Cuts a template into texts and tags, and tags into tokens, with transformers' settings: trim_blocks and lstrip_blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text::jinja {

/// Fault of a template's text, with its line.
struct SyntaxTrouble {
  std::string what;
  std::size_t line;
};

struct Token {
  enum class Kind : std::uint8_t { name, text, whole, real, sign, end };
  Kind kind = Kind::end;
  std::string text;  ///< of a text literal what it means
  std::size_t line = 0;
};

/// A piece of a template.
struct Piece {
  enum class Kind : std::uint8_t { text, output, block };
  Kind kind = Kind::text;
  std::string text;           ///< of a text
  std::vector<Token> tokens;  ///< of {{ … }} and {% … %}, the last of kind `end`
  std::size_t line = 1;
};

/// Cuts a template. Throws SyntaxTrouble.
std::vector<Piece> pieces_of(std::string_view source);

}  // namespace tsprun::detail::text::jinja
