// Tokens that are found in a text before its model sees it: <|im_end|>, [MASK].
#pragma once

#include "layers/text/byte_trie.h"
#include "layers/text/function_ref.h"
#include "layers/text/normalizers.h"
#include "layers/text/vocabulary.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tsprun::detail::text {

/// One of them, as the file has it.
struct AddedToken {
  std::string content;
  bool single_word = false;  ///< not where letters stand beside it
  bool strip_left = false;   ///< takes the blanks before it
  bool strip_right = false;  ///< takes the blanks behind it
  bool normalized = true;    ///< is found in the normalized text, in its own normal form
  bool special = false;      ///< may be left out of decoded texts

  bool operator==(const AddedToken&) const = default;
};

/// All of a file's.
class AddedTokens {
 public:
  /// Adds a token, and returns its id: the vocabulary's, if it has that text, else the next one. kNone: it was left out, since it
  /// is empty or there already.
  Token add(const AddedToken& token, const Vocabulary& vocabulary);
  /// Prepares the search, when all are there. `normalizer` may be null. Throws Error(refused) if they are too long.
  void prepare(const Normalizer* normalizer, const std::string& where);

  /// Cuts a text at the tokens that are found as they are (`normalized` false), or those in normal form, and calls part(piece,
  /// id) for each part that isn't empty; kNone: text between them.
  void cut(std::string_view text, bool normalized, FunctionRef<void(std::string_view piece, Token id)> part) const;

  /// Returns the text of an id for decoding, in its normal form if that is what is found; null: it is none of these.
  const std::string* text(Token id) const;
  /// Returns the id of this content; kNone: there is none.
  Token find(const std::string& content) const;
  /// Returns whether decoded texts may leave this text out.
  bool is_special(const std::string& content) const { return special_.contains(content) && special_.at(content); }
  /// Returns the highest id plus one.
  std::size_t ids() const { return ids_; }

 private:
  ByteTrie as_they_are_;
  ByteTrie normalized_;
  std::unordered_map<std::string, Token> by_content_;
  std::unordered_map<std::string, bool> special_;
  std::unordered_map<Token, AddedToken> by_id_;
  std::unordered_map<Token, std::string> texts_;
  std::vector<AddedToken> searched_;
  std::size_t beyond_ = 0;  // how many the vocabulary lacks
  std::size_t ids_ = 0;
};

}  // namespace tsprun::detail::text
