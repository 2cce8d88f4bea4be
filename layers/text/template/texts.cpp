// Walks over UTF-8.
#include "layers/text/template/texts.h"

#include "layers/text/characters.h"
#include "layers/text/template/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tsprun::detail::text::jinja {

namespace {

/// Returns whether a byte of UTF-8 goes on with a character.
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

}  // namespace

std::vector<std::string_view> characters_of(std::string_view text) {
  spend(sizeof(std::string_view) * text.size());
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_at(text, at).bytes;
    characters.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return characters;
}

std::size_t characters_in(std::string_view text) {
  spend(text.size() / 8);
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return !continues(c); }));
}

std::size_t place_of_character(std::string_view text, std::size_t number) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < number && at < text.size(); ++i) at += character_at(text, at).bytes;
  spend(at);
  return at;
}

std::size_t place_in(std::string_view text, std::string_view part) {
  spend(text.size() / 8);
  return find_in(text, part);
}

std::size_t find_in(std::string_view text, std::string_view part) {
  if (part.empty()) return 0;
  const void* found = ::memmem(text.data(), text.size(), part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

bool is_blank(char32_t code) { return is_white_space(code) || (code >= 0x1c && code <= 0x1f); }

std::string_view strip(std::string_view text, const std::string* which, bool left, bool right) {
  const std::vector<std::string_view> chosen = which == nullptr ? std::vector<std::string_view>{} : characters_of(*which);
  const auto goes = [&](const Character& character, std::size_t at) {
    spend(3 + 4 * chosen.size());
    if (which == nullptr) return is_blank(character.code);
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

void append_quoted(std::string_view text, std::string& to) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char mark = single ? '\'' : '"';
  to += mark;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = character_at(text, at);
    const std::string_view each = text.substr(at, bytes);
    at += bytes;
    if (each.front() == mark || each == "\\") to.append("\\").append(each);
    else if (each == "\n") to += "\\n";
    else if (each == "\r") to += "\\r";
    else if (each == "\t") to += "\\t";
    else if (code == ' ' || !(is_other(code) || is_white_space(code))) to += each;
    else if (code < 0x100) to += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(code));
    else if (code < 0x10000) to += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    else to += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(code));
  }
  to += mark;
}

void append_json(std::string_view text, std::string& to) {
  to += '"';
  for (const char c : text) {
    switch (c) {
      case '"': to += "\\\""; break;
      case '\\': to += "\\\\"; break;
      case '\n': to += "\\n"; break;
      case '\r': to += "\\r"; break;
      case '\t': to += "\\t"; break;
      case '\f': to += "\\f"; break;
      case '\b': to += "\\b"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) to += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else to += c;
    }
  }
  to += '"';
}

std::string brief(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while (end > 0 && continues(text[end])) --end;
  return std::string(text.substr(0, end)) + "…";
}

}  // namespace tsprun::detail::text::jinja
