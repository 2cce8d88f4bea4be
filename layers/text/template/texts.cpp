// Walks over UTF-8.
#include "layers/text/template/texts.h"

#include "layers/text/characters.h"
#include "layers/text/template/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tsprun::detail::text::jinja {

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_at(text, at).bytes;
    characters.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return characters;
}

std::size_t place_in(std::string_view text, std::string_view part) {
  if (part.empty()) return 0;
  const void* found = ::memmem(text.data(), text.size(), part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

bool is_blank(char32_t code) { return is_white_space(code) || (code >= 0x1c && code <= 0x1f); }

std::string_view strip(std::string_view text, const std::string* which, bool left, bool right) {
  const std::vector<std::string_view> chosen = which == nullptr ? std::vector<std::string_view>{} : characters_of(*which);
  const auto goes = [&](const Character& character, std::size_t at) {
    if (which == nullptr) return is_blank(character.code);
    spend(4 * chosen.size());
    return std::ranges::find(chosen, text.substr(at, character.bytes)) != chosen.end();
  };
  while (left && !text.empty()) {
    const Character first = character_at(text, 0);
    if (!goes(first, 0)) break;
    text.remove_prefix(first.bytes);
  }
  while (right && !text.empty()) {
    const Character last = character_before(text, text.size());
    if (!goes(last, text.size() - last.bytes)) break;
    text.remove_suffix(last.bytes);
  }
  return text;
}

std::string quoted(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char mark = single ? '\'' : '"';
  std::string result(1, mark);
  for (const std::string_view each : characters_of(text)) {
    const char32_t code = character_at(each, 0).code;
    if (each.front() == mark || each == "\\") result.append("\\").append(each);
    else if (each == "\n") result += "\\n";
    else if (each == "\r") result += "\\r";
    else if (each == "\t") result += "\\t";
    else if (code == ' ' || !(is_other(code) || is_white_space(code))) result += each;
    else if (code < 0x100) result += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(code));
    else if (code < 0x10000) result += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    else result += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(code));
  }
  return result += mark;
}

std::string json_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': result += "\\\""; break;
      case '\\': result += "\\\\"; break;
      case '\n': result += "\\n"; break;
      case '\r': result += "\\r"; break;
      case '\t': result += "\\t"; break;
      case '\f': result += "\\f"; break;
      case '\b': result += "\\b"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else result += c;
    }
  }
  return result += '"';
}

}  // namespace tsprun::detail::text::jinja
