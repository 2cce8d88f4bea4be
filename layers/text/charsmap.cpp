// Walks the double array as Darts-clone lays it out.
#include "layers/text/charsmap.h"

#include "layers/io/json_object.h"
#include "layers/text/characters.h"

#include <array>
#include <cstring>

namespace tsprun::detail::text {

namespace {

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int, 256> value{};
  value.fill(-1);
  for (std::size_t i = 0; i < kDigits.size(); ++i) value[static_cast<unsigned char>(kDigits[i])] = static_cast<int>(i);
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  unsigned bits = 0;
  int count = 0;
  for (const char each : text) {
    const int digit = value[static_cast<unsigned char>(each)];
    if (digit < 0) return {};
    bits = bits << 6 | static_cast<unsigned>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(bits >> count));
  }
  return bytes;
}

}  // namespace

Charsmap::Charsmap(JsonObject& object) {
  constexpr std::string_view kField = "precompiled_charsmap";
  constexpr std::string_view kExpected =
      "SentencePiece's table in base64: the length of its double array, the array, and texts that end with a NUL";
  const nlohmann::json* value = object.find(kField);
  if (value == nullptr) return;  // null: nothing is replaced
  if (!value->is_string()) object.refuse(kField, kExpected);
  const std::optional<std::string> bytes = from_base64(value->get_ref<const std::string&>());
  std::uint32_t size = 0;
  if (!bytes || bytes->size() < sizeof(size)) object.refuse(kField, kExpected);
  std::memcpy(&size, bytes->data(), sizeof(size));
  if (size % 4 != 0 || size > bytes->size() - sizeof(size)) object.refuse(kField, kExpected);
  units_.resize(size / 4);
  if (size > 0) std::memcpy(units_.data(), bytes->data() + sizeof(size), size);
  texts_ = bytes->substr(sizeof(size) + size);
  std::size_t wrong = 0;
  if (utf8_prefix(texts_, wrong) != texts_.size()) object.refuse(kField, "a table whose texts are UTF-8");
}

/// Returns the text for the shortest key with which `key` begins, as Hugging Face's tokenizers do.
std::optional<std::string_view> Charsmap::find(std::string_view key) const {
  const auto offset = [](std::uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); };
  if (units_.empty()) return {};
  std::uint32_t at = offset(units_[0]);
  for (const char each : key) {
    const auto label = static_cast<unsigned char>(each);
    if (label == 0) return {};
    at ^= label;
    if (at >= units_.size()) return {};
    const std::uint32_t unit = units_[at];
    if ((unit & ((1U << 31) | 0xff)) != label) return {};
    at ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (at >= units_.size()) return {};
    const std::size_t begin = units_[at] & ((1U << 31) - 1);
    if (begin > texts_.size()) return {};
    const std::string_view text = std::string_view(texts_).substr(begin);
    return text.substr(0, text.find('\0'));
  }
  return {};
}

std::string Charsmap::apply(std::string_view text) const {
  constexpr std::size_t kLongestKey = 5;
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view cluster = text.substr(at, grapheme_end(text, at) - at);
    at += cluster.size();
    if (const auto found = cluster.size() <= kLongestKey ? find(cluster) : std::nullopt) {
      result += *found;
      continue;
    }
    for (std::size_t i = 0; i < cluster.size();) {
      const std::string_view character = cluster.substr(i, character_at(cluster, i).bytes);
      result += find(character).value_or(character);
      i += character.size();
    }
  }
  return result;
}

}  // namespace tsprun::detail::text
