// Tokens of a tokenizer's model by id and by text.
#pragma once

#include "layers/io/data.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

/// No token.
inline constexpr Token kNone = -1;
/// The largest id that a file may have.
inline constexpr std::uint32_t kLargestId = (1U << 24) - 1;

/// A hash of bytes.
std::uint64_t hash_of(std::string_view bytes);

/// A table from text to id and back.
class Vocabulary {
 public:
  /// Adds a token. False: the id is another's. A text that is there already gets this id.
  bool add(std::string_view text, Token id);
  /// Makes room, so that adding doesn't grow the table step by step.
  void reserve(std::size_t tokens, std::size_t bytes);

  /// Returns the id of a text; kNone: no token has it.
  Token find(std::string_view text) const { return find(text, hash_of(text)); }
  /// Returns the same, for a text whose hash_of() is known.
  Token find(std::string_view text, std::uint64_t hash) const;
  /// Asks the caches for what find() of a text with this hash will read: first its place in the table, then, once that is there,
  /// its text.
  void fetch_place(std::uint64_t hash) const;
  void fetch_text(std::uint64_t hash) const;
  /// Returns the text of an id, if a token has it.
  std::optional<std::string_view> text(Token id) const;
  /// Returns the number of texts.
  std::size_t size() const { return count_; }
  /// Returns the highest id plus one.
  std::size_t ids() const { return tokens_.size(); }
  /// Returns the length of the longest token, in bytes.
  std::size_t longest() const { return longest_; }

 private:
  struct Entry {
    std::uint32_t begin = 0;
    std::uint32_t bytes = kAbsent;
  };
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};
  struct Slot {
    std::uint32_t hash = 0;
    Token id = kNone;  // kNone: free
  };

  std::string_view text_of(std::size_t id) const { return std::string_view(bytes_).substr(tokens_[id].begin, tokens_[id].bytes); }
  std::size_t slot_of(std::string_view text, std::uint64_t hash) const;
  void grow(std::size_t slots);

  std::string bytes_;  // all texts
  std::vector<Entry> tokens_;
  // Ids by the hash of their texts, whose upper half says without a look at the text that it is another. A power of two of them.
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace tsprun::detail::text
