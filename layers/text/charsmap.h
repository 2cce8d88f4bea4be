// SentencePiece's own normal forms: a table from short texts to others, as its models bring it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {
class JsonObject;
}

namespace tsprun::detail::text {

class Charsmap {
 public:
  /// Reads the base64 of the field "precompiled_charsmap": the length of a double array (Darts), the array, and texts that end
  /// with a NUL. Throws Error(refused).
  explicit Charsmap(JsonObject& object);

  /// Returns a text of which each grapheme cluster of at most 5 bytes, else each character, was replaced as the table says.
  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> find(std::string_view key) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace tsprun::detail::text
