// Follows Jinja's lexer: which blanks go away beside a tag, where a tag ends, what a text literal means.
#include "layers/text/template/lexer.h"

#include "layers/text/characters.h"
#include "layers/text/template/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tsprun::detail::text::jinja {

namespace {

constexpr std::array<std::string_view, 6> kDoubleSigns = {"//", "**", "==", "!=", "<=", ">="};
constexpr std::size_t kLongestName = 200;
constexpr std::string_view kSigns = "+-/*%~[](){}.:|,=<>";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_of_name(char c) { return begins_name(c) || is_digit(c); }

/// Returns the source with "\n" as the end of each line, without one at the end.
std::string lines_of(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') text += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n') text += '\n';
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(lines_of(source)) {}

  std::vector<Piece> all() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      const bool found = tag != std::string::npos;
      std::string_view before = std::string_view(source_).substr(at_, found ? tag - at_ : std::string::npos);
      const char sign = found && tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      const char kind = found ? source_[tag + 1] : ' ';
      if (sign == '-') before = strip(before, nullptr, false, true);
      else if (found && sign != '+' && kind != '{') before = without_indent(before);
      if (!before.empty()) add({.kind = Piece::Kind::text, .text = std::string(before), .tokens = {}, .line = line_});
      line_ +=
          static_cast<std::size_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                              source_.begin() + static_cast<std::ptrdiff_t>(found ? tag : source_.size()), '\n'));
      if (!found) break;
      at_ = tag + 2;
      if (sign == '-' || (sign == '+' && kind != '{')) ++at_;
      if (kind == '#') comment();
      else if (kind == '%' && word_at(at_) == "raw") raw();
      else inside(kind);
    }
    return std::move(pieces_);
  }

 private:
  [[noreturn]] void refuse(std::string what) const { throw SyntaxTrouble{std::move(what), line_}; }

  void add(Piece piece) { pieces_.push_back(std::move(piece)); }

  std::size_t next_tag() const {
    for (std::size_t at = source_.find('{', at_); at != std::string::npos && at + 1 < source_.size();
         at = source_.find('{', at + 1)) {
      if (const char next = source_[at + 1]; next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  /// Returns a text without the blanks between the beginning of its last line and a block.
  std::string_view without_indent(std::string_view text) const {
    const std::size_t end = text.rfind('\n');
    if (end == std::string_view::npos && at_ > 0 && source_[at_ - 1] != '\n') return text;
    const std::size_t begin = end == std::string_view::npos ? 0 : end + 1;
    return strip(text.substr(begin), nullptr, true, true).empty() ? text.substr(0, begin) : text;
  }

  /// Returns the first word behind a place, such as a tag's.
  std::string_view word_at(std::size_t at) const {
    const std::string_view rest = std::string_view(source_).substr(std::min(at, source_.size()));
    const std::string_view word = strip(rest, nullptr, true, false);
    std::size_t end = 0;
    while (end < word.size() && is_of_name(word[end])) ++end;
    return word.substr(0, end);
  }

  /// Goes on behind a tag's end, whose sign stands at at_ if it has one.
  void leave(bool block) {
    const char sign = source_[at_];
    at_ += sign == '-' || sign == '+' ? 3 : 2;
    if (sign == '-') {
      const std::size_t left = strip(std::string_view(source_).substr(at_), nullptr, true, false).size();
      const std::size_t to = source_.size() - left;
      line_ += static_cast<std::size_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                                   source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
      at_ = to;
    } else if (block && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
      ++line_;
    }
  }

  void comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment has no end: #}");
    line_ += static_cast<std::size_t>(
        std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_), source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? end - 1 : end;
    leave(true);
  }

  bool at_end(char kind) const {
    const std::string_view rest = std::string_view(source_).substr(at_);
    const std::string_view end = kind == '{' ? "}}" : "%}";
    return rest.starts_with(end) || (rest.starts_with('-') && rest.substr(1).starts_with(end)) ||
           (kind != '{' && rest.starts_with('+') && rest.substr(1).starts_with(end));
  }

  /// Takes {% raw %} … {% endraw %}.
  void raw() {
    at_ = source_.find("raw", at_) + 3;
    skip_blanks();
    if (!at_end('%')) refuse("raw takes nothing");
    leave(true);
    const std::size_t begin = at_;
    for (std::size_t end = source_.find("{%", at_); end != std::string::npos; end = source_.find("{%", end + 1)) {
      const char sign = end + 2 < source_.size() ? source_[end + 2] : ' ';
      const std::size_t inside = end + (sign == '-' || sign == '+' ? 3 : 2);
      if (word_at(inside) != "endraw") continue;
      std::string_view text = std::string_view(source_).substr(begin, end - begin);
      if (sign == '-') text = strip(text, nullptr, false, true);
      else if (sign != '+') text = without_indent(text);
      if (!text.empty()) add({.kind = Piece::Kind::text, .text = std::string(text), .tokens = {}, .line = line_});
      line_ += static_cast<std::size_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(begin),
                                                   source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      at_ = source_.find("endraw", inside) + 6;
      skip_blanks();
      if (!at_end('%')) refuse("endraw takes nothing");
      return leave(true);
    }
    refuse("raw has no end: {% endraw %}");
  }

  void skip_blanks() {
    while (at_ < source_.size()) {
      const Character next = character_at(source_, at_);
      if (!is_blank(next.code)) return;
      if (next.code == '\n') ++line_;
      at_ += next.bytes;
    }
  }

  /// Takes the tokens of {{ … }} or {% … %}.
  void inside(char kind) {
    Piece piece{.kind = kind == '{' ? Piece::Kind::output : Piece::Kind::block, .text = {}, .tokens = {}, .line = line_};
    std::string open;  // brackets that aren't closed yet
    for (skip_blanks(); !(open.empty() && at_end(kind)); skip_blanks()) {
      if (at_ >= source_.size()) refuse(kind == '{' ? "an expression has no end: }}" : "a block has no end: %}");
      Token token = next();
      if (token.kind == Token::Kind::sign) {
        if (token.text == "(" || token.text == "[" || token.text == "{") open += token.text;
        if (token.text == ")" || token.text == "]" || token.text == "}") {
          const std::string_view opened = token.text == ")" ? "(" : token.text == "]" ? "[" : "{";
          if (!open.ends_with(opened)) refuse(fmt::format("'{}' without '{}'", token.text, opened));
          open.pop_back();
        }
      }
      piece.tokens.push_back(std::move(token));
    }
    piece.tokens.push_back({.kind = Token::Kind::end, .text = {}, .line = line_});
    add(std::move(piece));
    leave(kind != '{');
  }

  Token next() {
    const char c = source_[at_];
    Token token{.kind = Token::Kind::sign, .text = {}, .line = line_};
    if (c == '"' || c == '\'') {
      token.kind = Token::Kind::text;
      token.text = literal();
    } else if (begins_name(c)) {
      token.kind = Token::Kind::name;
      while (at_ < source_.size() && is_of_name(source_[at_])) token.text += source_[at_++];
      if (token.text.size() > kLongestName)
        refuse(fmt::format("'{}': a name of more than {} letters", brief(token.text), kLongestName));
    } else if (is_digit(c)) {
      number(token);
    } else {
      const std::string_view rest = std::string_view(source_).substr(at_);
      for (const std::string_view sign : kDoubleSigns) {
        if (rest.starts_with(sign)) token.text = sign;
      }
      if (token.text.empty() && kSigns.find(c) == std::string_view::npos)
        refuse(fmt::format("'{}' isn't known in a template", rest.substr(0, character_at(rest, 0).bytes)));
      if (token.text.empty()) token.text = c;
      at_ += token.text.size();
    }
    return token;
  }

  void digits(std::string& to) {
    while (at_ < source_.size() &&
           (is_digit(source_[at_]) || (source_[at_] == '_' && at_ + 1 < source_.size() && is_digit(source_[at_ + 1])))) {
      if (source_[at_] != '_') to += source_[at_];
      ++at_;
    }
  }

  void number(Token& token) {
    const bool member = at_ > 0 && source_[at_ - 1] == '.';
    token.kind = Token::Kind::whole;
    digits(token.text);
    if (member) return;
    if (at_ + 1 < source_.size() && source_[at_] == '.' && is_digit(source_[at_ + 1])) {
      token.kind = Token::Kind::real;
      token.text += source_[at_++];
      digits(token.text);
    }
    const std::string_view rest = std::string_view(source_).substr(at_);
    const std::size_t sign = rest.size() > 1 && (rest[1] == '+' || rest[1] == '-') ? 1 : 0;
    if (rest.size() > 1 + sign && (rest[0] == 'e' || rest[0] == 'E') && is_digit(rest[1 + sign])) {
      token.kind = Token::Kind::real;
      token.text += rest.substr(0, 1 + sign);
      at_ += 1 + sign;
      digits(token.text);
    }
  }

  std::string literal() {
    const char mark = source_[at_++];
    std::string text;
    while (at_ < source_.size() && source_[at_] != mark) {
      if (source_[at_] == '\n') ++line_;
      if (source_[at_] != '\\' || at_ + 1 == source_.size()) text += source_[at_++];
      else escape(text);
    }
    if (at_ >= source_.size()) refuse("a text has no end");
    ++at_;
    return text;
  }

  /// Takes a backslash and what it stands for, as in Python.
  void escape(std::string& text) {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[at_ + 1];
    at_ += 2;
    if (const std::size_t known = kLetters.find(c); known != std::string_view::npos) {
      text += kMeanings[known];
    } else if (c == '\n') {
      ++line_;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      char32_t code = 0;
      for (std::size_t i = 0; i < count; ++i, ++at_) {
        const char digit = at_ < source_.size() ? static_cast<char>(source_[at_] | 0x20) : ' ';
        if (!is_digit(digit) && !(digit >= 'a' && digit <= 'f'))
          refuse(fmt::format("\\{} takes {} hexadecimal digits", c, count));
        code = code << 4 | static_cast<char32_t>(is_digit(digit) ? digit - '0' : digit - 'a' + 10);
      }
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) refuse("an escape of what isn't a character");
      append(text, code);
    } else if (c == 'N' || is_digit(c)) {
      refuse(fmt::format("the escape \\{} isn't read; write \\u", c));
    } else {
      (text += '\\') += c;
    }
  }

  std::string source_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Piece> pieces_of(std::string_view source) { return Lexer(source).all(); }

}  // namespace tsprun::detail::text::jinja
