// Watches nlohmann-json's parser for duplicate names and depth, and words its errors.
#include "layers/io/json_text.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_set>
#include <vector>

namespace tsprun::detail {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kShownBytes = 120;

/// Observes the parser: records which names each open object has had, and the field that is being read.
class Watch {
 public:
  explicit Watch(const std::string& where) : where_(where) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    const auto level = static_cast<std::size_t>(std::max(depth, 0));
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (level >= kMaxDepth) {
          throw Error(Cause::refused, fmt::format("{}: nested deeper than the {} levels that are accepted", where_, kMaxDepth));
        }
        if (event == json::parse_event_t::object_start) objects_.emplace_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        path_.resize(std::min(path_.size(), objects_.size() - 1));
        path_.push_back(key);
        if (!objects_.back().insert(key).second) {
          throw Error(Cause::refused, fmt::format("{}: field \"{}\" is given twice; expected once", where_, field()));
        }
        break;
      }
      case json::parse_event_t::object_end:
        objects_.pop_back();
        path_.resize(std::min(path_.size(), objects_.size()));
        break;
      case json::parse_event_t::array_end:
      case json::parse_event_t::value: break;
    }
    return true;
  }

  /// Returns the field read last with the objects around it, "rope_parameters.rope_theta"; empty before the first.
  std::string field() const {
    std::string text;
    for (const std::string& key : path_) text += (text.empty() ? "" : ".") + key;
    return shown(text);
  }

 private:
  const std::string& where_;
  std::vector<std::unordered_set<std::string>> objects_;
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

/// Returns the library's message without its "[json.exception…] " prefix. The message quotes the text, which may not even be
/// UTF-8.
std::string reason(const json::exception& failure) {
  std::string text = failure.what();
  if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c >= 0x80; }, '?');
  return shown(text);
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  // The library stops at a NUL byte and ignores what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(Cause::refused,
                fmt::format("{}: expected JSON: byte {} of {} is a NUL, which JSON doesn't have", where, nul + 1, text.size()));
  }
  Watch watch(where);
  const auto follow = [&watch](int depth, json::parse_event_t event, json& parsed) { return watch(depth, event, parsed); };
  try {
    return json::parse(text.begin(), text.end(), follow);
  } catch (const json::out_of_range& failure) {
    throw Error(Cause::refused,
                fmt::format("{}: field \"{}\": expected a finite number ({})", where, watch.field(), reason(failure)));
  } catch (const json::parse_error& failure) {
    const std::string_view word = word_at(text, failure.byte > 0 ? failure.byte - 1 : 0);
    if (is_not_finite(word)) {
      throw Error(Cause::refused,
                  fmt::format("{}: field \"{}\": expected a finite number, found {}", where, watch.field(), word));
    }
    const std::string field = watch.field();
    throw Error(Cause::refused,
                fmt::format("{}: expected JSON{}: {}", where,
                            field.empty() ? "" : fmt::format(", at or after field \"{}\"", field), reason(failure)));
  }
}

std::string shown(std::string_view text) {
  std::size_t end = std::min(text.size(), kShownBytes);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;  // no half character
  std::string result(text.substr(0, end));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (end < text.size()) result += "…";
  return result;
}

std::string shown_value(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return shown(value.dump());
}

}  // namespace tsprun::detail
