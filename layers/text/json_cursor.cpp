// One pass over the bytes; a string without escapes is a view of them.
#include "layers/text/json_cursor.h"

#include "layers/io/json_text.h"
#include "layers/text/characters.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace tsprun::detail::text {

void JsonCursor::refuse(std::string_view expected, std::size_t at) const {
  throw Error(Cause::refused, fmt::format("{}: byte {}: expected {}, found {}", where_, at, expected,
                                          at < text_.size() ? shown(text_.substr(at, 20)) : "the end"));
}

char JsonCursor::peek() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonCursor::take(char expected, std::string_view what) {
  if (peek() != expected) refuse(what);
  ++at_;
}

bool JsonCursor::take_if(char character) {
  if (peek() != character) return false;
  ++at_;
  return true;
}

void JsonCursor::take_colon() { take(':', "a colon"); }

std::string_view JsonCursor::string(std::string_view what) {
  take('"', what);
  const std::size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<unsigned char>(text_[at_]) >= 0x20) ++at_;
  std::string_view value = text_.substr(begin, at_ - begin);
  if (at_ == text_.size() || text_[at_] != '"') value = unescaped(begin, what);
  ++at_;
  std::size_t wrong = 0;
  if (const std::size_t good = utf8_prefix(value, wrong); good != value.size()) {
    at_ = begin;
    refuse(fmt::format("{} in UTF-8", what));
  }
  return value;
}

char32_t JsonCursor::hexadecimal(std::string_view what) {
  unsigned value = 0;
  const char* const begin = text_.data() + at_;
  if (text_.size() - at_ < 4 || std::from_chars(begin, begin + 4, value, 16).ptr != begin + 4) refuse(what);
  at_ += 4;
  return value;
}

std::string_view JsonCursor::unescaped(std::size_t begin, std::string_view what) {
  unescaped_.assign(text_.substr(begin, at_ - begin));
  while (at_ < text_.size() && text_[at_] != '"') {
    if (static_cast<unsigned char>(text_[at_]) < 0x20) refuse(what);
    if (text_[at_] != '\\') {
      unescaped_ += text_[at_++];
      continue;
    }
    const char escape = ++at_ < text_.size() ? text_[at_] : '\0';
    ++at_;
    switch (escape) {
      case '"':
      case '\\':
      case '/': unescaped_ += escape; break;
      case 'b': unescaped_ += '\b'; break;
      case 'f': unescaped_ += '\f'; break;
      case 'n': unescaped_ += '\n'; break;
      case 'r': unescaped_ += '\r'; break;
      case 't': unescaped_ += '\t'; break;
      case 'u': {
        char32_t code = hexadecimal(what);
        if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
          at_ += 2;
          const char32_t low = hexadecimal(what);
          if (low < 0xdc00 || low >= 0xe000) refuse("the second half of a surrogate pair before this");
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        } else if (code >= 0xd800 && code < 0xe000) {
          refuse("a surrogate pair, not one half, before this");
        }
        append(unescaped_, code);
        break;
      }
      default: --at_, refuse(what);
    }
  }
  if (at_ == text_.size()) refuse(what);
  return unescaped_;
}

std::uint32_t JsonCursor::integer(std::uint32_t most, std::string_view what) {
  peek();
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (error != std::errc() || value > most) refuse(fmt::format("{} from 0 to {}", what, most));
  at_ = static_cast<std::size_t>(end - text_.data());
  return value;
}

double JsonCursor::number(std::string_view what) {
  peek();
  double value = 0;
  const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (error != std::errc() || !std::isfinite(value)) refuse(what);
  at_ = static_cast<std::size_t>(end - text_.data());
  return value;
}

void JsonCursor::skip() {
  constexpr int kMostLevels = 32;
  int level = 0;
  do {
    const char next = peek();
    if (next == '"') {
      skip_string();
    } else if (next == '\0') {
      refuse("the rest of a value");
    } else {
      if (next == '[' || next == '{') ++level;
      if (next == ']' || next == '}') --level;
      if (level > kMostLevels) refuse("at most 32 levels");
      ++at_;
      // The rest of a number or a word.
      if (level == 0 && next != ']' && next != '}')
        while (at_ < text_.size() && std::string_view(",]} \n\t\r").find(text_[at_]) == std::string_view::npos) ++at_;
    }
  } while (level > 0);
}

void JsonCursor::skip_string() {
  const std::size_t begin = at_ + 1;
  bool escaped = true;
  while (escaped) {
    at_ = text_.find('"', at_ + 1);
    if (at_ == std::string_view::npos) {
      at_ = text_.size();
      refuse("the end of a string");
    }
    std::size_t backslashes = 0;
    while (at_ - backslashes > begin && text_[at_ - backslashes - 1] == '\\') ++backslashes;
    escaped = backslashes % 2 != 0;
  }
  ++at_;
}

}  // namespace tsprun::detail::text
