// Byte pair encoding: a word's characters, of which the pair that comes first in a list is merged until none is left.
#pragma once

#include "layers/text/model.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

/// Properties of a model besides vocabulary and merges.
struct BpeOptions {
  std::string unknown;                ///< the token for what the vocabulary lacks; empty: that is left out
  std::string continuing_prefix;      ///< before each character but a word's first
  std::string end_suffix;             ///< behind a word's last character
  bool fuse_unknown = false;          ///< unknown characters that follow each other are one token
  bool byte_fallback = false;         ///< an unknown character is its bytes, <0xE2>
  bool ignore_merges = false;         ///< a word that is a token isn't cut
  bool bytes_are_characters = false;  ///< words are bytes, for which characters of byte_alphabet.h stand in the vocabulary
};

/// The merges: pairs of ids, with rank and result.
class Merges {
 public:
  struct Merge {
    std::uint64_t pair;
    std::uint32_t rank;
    Token result;
  };
  void reserve(std::size_t merges);
  /// Asks the caches for the place of a pair, for add() a little later.
  void fetch(Token left, Token right) const { __builtin_prefetch(&slots_[place(pair_of(left, right))], 1); }
  /// Adds a merge; of two of the same pair the later counts.
  void add(Token left, Token right, std::uint32_t rank, Token result);
  /// Returns the merge of a pair; null: there is none.
  const Merge* find(Token left, Token right) const {
    const std::uint64_t pair = pair_of(left, right);
    for (std::size_t at = place(pair);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].pair == pair) return &slots_[at];
      if (slots_[at].pair == kFree) return nullptr;
    }
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static std::uint64_t pair_of(Token left, Token right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::uint64_t pair) const {
    const std::uint64_t mixed = pair * 0x9e3779b97f4a7c15U;
    return (mixed ^ mixed >> 32) & (slots_.size() - 1);
  }
  void resize(std::size_t slots);

  std::vector<Merge> slots_ = std::vector<Merge>(16, Merge{kFree, 0, 0});
  std::size_t count_ = 0;
};

class Bpe : public Model {
 public:
  /// Borrows `vocabulary`, which is complete.
  Bpe(const Vocabulary& vocabulary, BpeOptions options);
  /// Reads the list of merges, as strings "a b" or pairs of strings. Throws Error(refused), also for a merge of tokens that the
  /// vocabulary lacks.
  void read_merges(JsonCursor& cursor);

  void encode(std::string_view word, WordCache& cache, std::vector<Token>& ids) const override;

 private:
  /// A merge whose ids are known.
  struct KnownMerge {
    Token left;
    Token right;
    Token result;
  };
  /// A merge that was read and not looked up yet.
  struct ReadMerge {
    std::string left;
    std::string right;
    std::uint64_t left_hash = 0;
    std::uint64_t right_hash = 0;
    std::size_t end = 0;  // byte of the file behind it
  };
  /// Returns the ids of a merge.
  KnownMerge look_up(const ReadMerge& merge, const JsonCursor& cursor);
  /// Adds merges that follow each other, from this rank on.
  void add(std::span<const KnownMerge> merges, std::uint32_t rank);
  void note_seam(const KnownMerge& merge);
  /// Calls put(id, byte) for each token with which the merging of a text begins.
  template <class Put>
  void each_symbol(std::string_view text, const Put& put) const;
  Token symbol(std::string_view character, bool first, bool last, std::string& spelled) const;
  Token unknown() const;
  void encode_by_seams(std::string_view word, WordCache& cache, std::vector<Token>& ids) const;
  void merge(std::vector<Token>& symbols) const;
  void merge_few(std::vector<Token>& symbols) const;
  void merge_many(std::vector<Token>& symbols) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  Merges merges_;
  Token last_result_ = kNone;  // of the merge that was looked up last
  Token unknown_;
  std::array<Token, 256> bytes_{};  // <0x00> to <0xFF>
  std::vector<Token> characters_;   // ids of the characters below kByteAlphabetEnd, where neither prefix nor suffix is used
  // Bits by the hash of two characters' ids: whether any merge goes over the seam between them. No other seams are in a token, so
  // a long text is cut there, and its parts come from the cache. Empty: that isn't known, or wouldn't help.
  std::vector<std::uint64_t> seams_;
};

}  // namespace tsprun::detail::text
