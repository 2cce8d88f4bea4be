// Builds values from nlohmann-json's parser, with a look at duplicate names and depth, and words its errors.
#include "layers/io/json_text.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

namespace tsprun::detail {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kShownBytes = 120;

/// Builds a value from what the parser reads, refuses what is nested too deeply or named twice, and knows the field that is being
/// read. (The library's own callback looks through all siblings whenever an object ends: quadratic in their number.)
class Builder {
 public:
  explicit Builder(const std::string& where) : where_(where) {}

  json take() { return std::move(root_); }

  /// Returns the field read last with the objects around it, "rope_parameters.rope_theta"; empty before the first.
  std::string field() const {
    std::string text;
    for (const std::string& key : path_) text += (text.empty() ? "" : ".") + key;
    return shown(text);
  }

  // What json::sax_parse() calls. True: go on.
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // JSON text has none
  bool start_object(std::size_t) {
    ++objects_;
    return open(json::object());
  }
  bool start_array(std::size_t) { return open(json::array()); }
  bool key(std::string& name) {
    path_.resize(std::min(path_.size(), objects_ - 1));
    path_.push_back(name);
    const auto [at, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(std::move(name));
    if (!is_new) throw Error(Cause::refused, fmt::format("{}: field \"{}\" is given twice; expected once", where_, field()));
    named_ = &at->second;
    return true;
  }
  bool end_object() {
    --objects_;
    path_.resize(std::min(path_.size(), objects_));
    open_.pop_back();
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& failure) {
    throw failure;
  }

 private:
  /// Puts a value where it belongs, and returns its place.
  json* place(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
    *named_ = std::move(value);
    return named_;
  }
  bool add(json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(json&& container) {
    if (open_.size() >= kMaxDepth)
      throw Error(Cause::refused, fmt::format("{}: nested deeper than the {} levels that are accepted", where_, kMaxDepth));
    open_.push_back(place(std::move(container)));
    return true;
  }

  const std::string& where_;
  json root_;
  std::vector<json*> open_;  // containers that have begun, the outermost first; their addresses stay while they are open
  json* named_ = nullptr;    // where the value of the key read last belongs
  std::size_t objects_ = 0;  // those of open_ that are objects
  std::vector<std::string> path_;
};

/// Returns the word around byte `at` of the text, where the parser gave up.
std::string_view word_at(std::string_view text, std::size_t at) {
  const auto in_word = [&](std::size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    return std::isalnum(c) != 0 || c == '-' || c == '+' || c == '.';
  };
  if (at >= text.size() || !in_word(at)) return {};
  std::size_t first = at;
  std::size_t end = at + 1;
  while (first > 0 && at - first < kShownBytes && in_word(first - 1)) --first;
  while (end < text.size() && end - at < kShownBytes && in_word(end)) ++end;
  return text.substr(first, end - first);
}

bool is_not_finite(std::string_view word) {
  if (!word.empty() && (word.front() == '-' || word.front() == '+')) word.remove_prefix(1);
  std::string lower(word);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 3> kNames = {"nan", "inf", "infinity"};
  return std::find(kNames.begin(), kNames.end(), lower) != kNames.end();
}

/// Returns the code point of the character with which the text begins, and its bytes; nothing if that isn't well-formed UTF-8.
std::optional<std::pair<char32_t, std::size_t>> first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {{first, 1}};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || bytes > text.size()) return std::nullopt;
  char32_t code = first & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return std::nullopt;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return std::nullopt;
  return {{code, bytes}};
}

/// Returns the bytes of the character with which the text begins; 0 if a terminal could take it for a command (also the control
/// characters from U+0080 to U+009F) or show what follows in another order, or if it isn't UTF-8.
std::size_t printable_bytes(std::string_view text) {
  const auto character = first_character(text);
  if (!character) return 0;
  const auto [code, bytes] = *character;
  const bool is_control = code < 0x20 || (code >= 0x7f && code <= 0x9f);
  const bool turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return is_control || turns ? 0 : bytes;
}

/// Returns the library's message without its "[json.exception…] " prefix. The message quotes the text, which may not even be
/// UTF-8.
std::string reason(const json::exception& failure) {
  std::string text = failure.what();
  if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
  return shown(text);
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  // The library stops at a NUL byte and ignores what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(Cause::refused,
                fmt::format("{}: expected JSON: byte {} of {} is a NUL, which JSON doesn't have", where, nul + 1, text.size()));
  }
  Builder builder(where);
  try {
    json::sax_parse(text.begin(), text.end(), &builder);
    return builder.take();
  } catch (const json::out_of_range& failure) {
    throw Error(Cause::refused,
                fmt::format("{}: field \"{}\": expected a finite number ({})", where, builder.field(), reason(failure)));
  } catch (const json::parse_error& failure) {
    const std::string_view word = word_at(text, failure.byte > 0 ? failure.byte - 1 : 0);
    if (is_not_finite(word)) {
      throw Error(Cause::refused,
                  fmt::format("{}: field \"{}\": expected a finite number, found {}", where, builder.field(), word));
    }
    const std::string field = builder.field();
    throw Error(Cause::refused,
                fmt::format("{}: expected JSON{}: {}", where,
                            field.empty() ? "" : fmt::format(", at or after field \"{}\"", field), reason(failure)));
  }
}

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = printable_bytes(text);
    if (bytes == 0) result += '?';
    else result += text.substr(0, bytes);
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return result;
}

std::string shown(std::string_view text) {
  std::size_t end = std::min(text.size(), kShownBytes);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;  // no half character
  return printable(text.substr(0, end)) + (end < text.size() ? "…" : "");
}

std::string shown_value(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return shown(value.dump());
}

}  // namespace tsprun::detail
